"""Environment files and release manifests: what is refused, with which sentence, and that ours are accepted."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from steelyard.environments.bucket_names import bucket_name_fault
from steelyard.environments.files import FOLDER, environment_names, load_environment, parse_environment
from steelyard.environments.schema import Environment
from steelyard.models.catalogue import catalogue
from steelyard.models.manifest import manifest_sha256, model_manifest, model_prefix
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import Release, load_release, parse_release
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.strict import Strict, Table, fields_of
from steelyard_runtime.settings import Settings

DIGEST = "sha256:" + "a" * 64


def decision(**changes: Any) -> dict[str, Any]:
    """A decision endpoint that is accepted, with changes; a change to None removes the field."""
    fields = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", **changes}
    return {name: value for name, value in fields.items() if value is not None}


def on_gpu(**changes: Any) -> dict[str, Any]:
    return decision(**{"hardware": "cuda", "instance_type": "ml.g6e.xlarge", "gpu_layers": -1, **changes})


def environment(endpoint: Mapping[str, Any] | None = None, **changes: Any) -> Environment:
    data = {
        "region": "us-east-1",
        "removal_policy": "destroy",
        "endpoints": {"one": endpoint if endpoint is not None else decision()},
        **changes,
    }
    return parse_environment(data, name="test", source="test.toml")


def pool(*places: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"instance_type": instance_type, "priority": priority} for instance_type, priority in places]


def manifest() -> dict[str, Any]:
    """The sample manifest, as a fresh dictionary."""
    content: dict[str, Any] = json.loads((FOLDER.parent / "releases" / "sample.json").read_text())
    return content


KEY = "arn:aws:kms:us-east-1:111122223333:key/00000000-0000-0000-0000-000000000000"

# What the file says: the endpoint, other changes, and the sentence.
ENDPOINTS_REFUSED = {
    "a hub for decisions": (
        decision(hub={"repository": "a/b", "file": "c.gguf", "bytes": 1}),
        "hub is set, but a decision endpoint takes its model from the release only; remove hub",
    ),
    "a hub and a model": (
        decision(kind="chat", model="chat", hub={"repository": "a/b", "file": "c.gguf", "bytes": 1}),
        "both hub and model 'chat' are set; remove one of them",
    ),
    **{
        f"{name} = {value[:20]!r} for the container": (decision(threads=2, environment={name: value}), sentence)
        for name, value, sentence in (
            ("STEELYARD_DEADLINE", "5", "did you mean STEELYARD_DEADLINE_S?"),
            ("STEELYARD_LOGLEVEL", "info", "which is no setting of the server; did you mean STEELYARD_LOG_LEVEL?"),
            ("STEELYARD_XYZQ", "5", "STEELYARD_XYZQ, which is no setting of the server; remove it"),
            ("STEELYARD_CONFIG", "/x", "STEELYARD_CONFIG, which is no setting of the server; remove it"),
            ("STEELYARD_DEADLINE_S", "5s", "STEELYARD_DEADLINE_S = '5s': Input should be a valid number"),
            ("STEELYARD_DEADLINE_S", "inf", "STEELYARD_DEADLINE_S = 'inf': Input should be"),
            ("STEELYARD_DEADLINE_S", "nan", "STEELYARD_DEADLINE_S = 'nan': Input should be"),
            ("STEELYARD_QUEUE_LIMIT", "0", "STEELYARD_QUEUE_LIMIT = '0': Input should be greater than or equal to 1"),
            ("STEELYARD_PROBE", "maybe", "STEELYARD_PROBE = 'maybe': Input should be a valid boolean"),
            ("STEELYARD_LAYOUT", "state", "STEELYARD_LAYOUT = 'state': Input should be 'state-first' or"),
            ("STEELYARD_LAYOUT", "s" * 999, "sss...: Input should be 'state-first' or"),
            ("STEELYARD_MODEL_ID", "a\0", "variable STEELYARD_MODEL_ID has the character U+0000 at position 1"),
            ("OTHER", "\0", "environment variable OTHER has the character U+0000 at position 0"),
            ("OTHER", "x" * 1025, "environment variable OTHER has 1025 characters; SageMaker takes at most 1024"),
            ("STEELYARD_PORT", "1", "sets STEELYARD_PORT, but SageMaker reaches the server on port 8080 only"),
            ("SAGEMAKER_BIND_TO_PORT", "1", "SageMaker reaches the server on port 8080 only; remove it"),
            ("PORT", "1", "the environment sets PORT, but SageMaker reaches the server on port 8080 only"),
            ("STEELYARD_HOST", "::", "sets STEELYARD_HOST, which the endpoint sets itself"),
            ("STEELYARD_MODEL", "/x", "sets STEELYARD_MODEL, which the endpoint sets itself"),
            ("STEELYARD_GPU_LAYERS", "1", "sets STEELYARD_GPU_LAYERS, which the endpoint sets itself"),
            ("STEELYARD_THREADS", "1", "sets STEELYARD_THREADS, which the endpoint sets itself"),
        )
    },
    "settings that contradict each other": (
        decision(environment={"STEELYARD_CACHE_TYPE": "q8_0", "STEELYARD_FLASH_ATTENTION": "off"}),
        "cache_type=q8_0 needs flash attention, and flash_attention is off; set it to auto or on",
    ),
    "U+0000 for chat": (
        decision(kind="chat", environment={"SM_LLAMA_CPP_ALIAS": "\0"}),
        "environment variable SM_LLAMA_CPP_ALIAS has the character U+0000 at position 0",
    ),
    "an unknown field": (decision(instance_count=1), "endpoints.one.instance_count: there is no such field"),
    "an unknown kind": (decision(kind="embedding"), "endpoints.one.kind: Input should be 'chat' or 'decision'"),
    "callers that are named and everyone": (
        decision(caller={"principals": ["arn:aws:iam::111122223333:role/A"], "whole_account": True}),
        "endpoints.one.caller: names principals and the whole account",
    ),
    "how a caller calls, but not who it is": (
        decision(caller={"bearer_token": True}),
        "endpoints.one.caller: says how the role calls, but not who may assume it",
    ),
    "a caller that is no principal": (
        decision(caller={"principals": ["*"]}),
        "endpoints.one.caller.principals.0: String should match pattern",
    ),
}


@pytest.mark.parametrize(("endpoint", "sentence"), ENDPOINTS_REFUSED.values(), ids=ENDPOINTS_REFUSED)
def test_endpoint_refused(endpoint: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandError) as refused:
        environment(endpoint)
    assert sentence in refused.value.message
    assert "test.toml" in refused.value.message
    assert "endpoints.one" in refused.value.message
    assert refused.value.code is ExitCode.USAGE


def test_settings_that_the_server_takes_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment of this process says about the server."""
    monkeypatch.setenv("STEELYARD_DEADLINE_S", "5s")
    given = {
        "STEELYARD_LOG_LEVEL": "debug",
        "STEELYARD_PROBE": "no",
        "STEELYARD_STREAM_DEADLINE_S": "5.5",
        "STEELYARD_MODEL_ID": "mine",
        "STEELYARD_THREADS": "2",
        "OMP_NUM_THREADS": "2",
    }
    assert environment(decision(environment=given)).endpoints["one"].environment == given


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in Settings.model_fields
        if name
        not in {
            "model",
            "host",
            "gpu_layers",
            "port",
            "decisions_sha256",
            "endpoint_name",
        }  # the endpoint sets them itself
    ],
)
def test_every_setting_of_the_server_can_be_given_its_default(name: str) -> None:
    default = Settings.model_fields[name].default
    environment(decision(environment={f"STEELYARD_{name.upper()}": "x" if default is None else str(default)}))


def test_every_fault_of_a_containers_environment_is_told_at_once() -> None:
    faults = {"STEELYARD_DEADLINE": "5", "STEELYARD_PROBE": "maybe", "STEELYARD_QUEUE_LIMIT": "x", "PORT": "1"}
    with pytest.raises(CommandError) as refused:
        environment(decision(environment=faults))
    assert all(name in refused.value.message for name in faults)


ENVIRONMENTS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a hub in a network without a way out": (
        {
            "endpoints": {"one": decision(kind="chat", hub={"repository": "a/b", "file": "c.gguf", "bytes": 1})},
            "network": {"kind": "created"},
        },
        "hub is set, but the network is 'created', a VPC without any way out",
    ),
    "something that is no region": ({"region": "Frankfurt"}, "region: String should match pattern"),
    "an account of 11 digits": ({"account": "11112222333"}, "account: String should match pattern"),
    "a bucket name that cannot exist": (
        {"artifacts": {"bucket_name": "Models"}},
        "the bucket name 'Models' cannot exist: use lower-case letters, digits and hyphens only",
    ),
    "a repository with a tag": (
        {"images": {"repository": "steelyard:latest"}},
        "image repository 'steelyard:latest' is not a name that ECR takes: lower-case letters and digits, with . _ - "
        "and / between them, no registry in front and no tag behind",
    ),
    "a registry without a repository": (
        {"images": {"account": "111122223333"}},
        "images: account is set and repository is not; name the repository that the account shares",
    ),
    "images built where none are pulled from": (
        {"images": {"account": "111122223333", "repository": "a"}, "builds": {"images": ["cpu"]}},
        "images are built here, but endpoints pull from account 111122223333",
    ),
    "images that others run, deleted with the environment": (
        {"images": {"pull_accounts": ["444455556666", "777788889999"]}},
        "images: pull_accounts has 444455556666, 777788889999, and removal_policy is 'destroy', which would delete the "
        "images that those accounts run, and their key; set removal_policy to 'retain', or remove pull_accounts",
    ),
    "days that CloudWatch does not offer": (
        {"log_retention_days": 10},
        "CloudWatch cannot keep logs for 10 days; use one of 1, 3, 5, 7, 14, 30",
    ),
    "a subnet in another region": (
        {
            "network": {
                "kind": "existing",
                "vpc_id": "vpc-0123456789abcdef0",
                "subnets": {"eu-west-1a": "subnet-0123456789abcdef0"},
            }
        },
        "availability zone 'eu-west-1a' is not in region 'us-east-1'; name one that is",
    ),
    "public addresses": (
        {"network": {"kind": "created", "cidr": "8.8.0.0/16"}},
        "'8.8.0.0/16' is not a private IPv4 network between /16 and /24",
    ),
    "a key of another region": (
        {"encryption": {"kind": "existing", "key_arn": KEY.replace("us-east-1", "eu-west-1")}},
        "is not in region 'us-east-1'; use one that is",
    ),
    "a removal policy that is none": ({"removal_policy": "snapshot"}, "removal_policy: Input should be 'destroy' or"),
    "an address that is none": ({"alarms": {"emails": ["nobody"]}}, "alarms.emails.0: String should match pattern"),
    "a budget of nothing": (
        {"budget": {"monthly_usd": 0, "emails": ["a@example.com"]}},
        "budget.monthly_usd: Input should be greater than or equal to 1 (it is 0)",
    ),
    "a budget that nobody hears of": ({"budget": {"monthly_usd": 5, "emails": []}}, "budget.emails: Tuple should have"),
    "an endpoint name that SageMaker refuses": (
        {"endpoints": {"my_endpoint": decision()}},
        "endpoints.my_endpoint.[key]: String should match pattern",
    ),
    "a name inside": ({"name": "other"}, "the name is that of the file: remove it"),
    "an unknown table": ({"endpointz": {}}, "endpointz: there is no such field"),
}


@pytest.mark.parametrize(("changes", "sentence"), ENVIRONMENTS_REFUSED.values(), ids=ENVIRONMENTS_REFUSED)
def test_environment_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandError, match=re.escape(sentence)):
        environment(**changes)


@pytest.mark.parametrize("partition", boto3.Session().get_available_partitions())
def test_every_region_of_sagemaker_is_one(partition: str) -> None:
    regions = boto3.Session().get_available_regions("sagemaker", partition_name=partition)
    assert regions
    assert [environment(region=region).region for region in regions] == regions


def test_all_faults_are_told_at_once() -> None:
    endpoints = {"one": decision(threads=99), "two": on_gpu(gpu_layers=0)}
    with pytest.raises(CommandError) as refused:
        environment(endpoints=endpoints)
    assert "endpoints.one: threads is 99" in refused.value.message
    assert "endpoints.two: gpu_layers is 0 on a 'cuda' endpoint" in refused.value.message


def an_arm_image(content: dict[str, Any]) -> None:
    content["images"]["decision"]["cpu"]["architecture"] = "arm64"


def without_cpu_image(content: dict[str, Any]) -> None:
    del content["images"]["decision"]["cpu"]


def without_cuda(content: dict[str, Any]) -> None:
    del content["images"]["decision"]["cuda"]["cuda"]


def without_decision_model(content: dict[str, Any]) -> None:
    del content["models"]["decision"]


RELEASES_REFUSED: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], None] | None, str]] = {
    "an image of another architecture": (
        decision(),
        an_arm_image,
        "is built for arm64, but 'cpu' instances are x86_64: the container would not start",
    ),
    "CUDA 13 on an AMI with an older driver": (
        on_gpu(inference_ami="al2-ami-sagemaker-inference-gpu-3-1"),
        None,
        "the image has CUDA 13.0, which needs NVIDIA driver 580, but inference AMI "
        "'al2-ami-sagemaker-inference-gpu-3-1' has driver 550: the container would not start and would log nothing",
    ),
    "CUDA on a family that the AMI does not support": (
        on_gpu(instance_type="ml.p3.2xlarge"),
        None,
        "instance type 'ml.p3.2xlarge' is not supported by inference AMI 'al2023-ami-sagemaker-inference-gpu-4-1'",
    ),
    "one such family in a pool": (
        on_gpu(instance_type=None, instance_pool=pool(("ml.g6e.xlarge", 1), ("ml.p3.2xlarge", 2))),
        None,
        "instance type 'ml.p3.2xlarge' is not supported",
    ),
    "an AMI that is none": (on_gpu(inference_ami="newest"), None, "inference AMI 'newest' is not one of"),
    "an image without CUDA on a GPU": (on_gpu(), without_cuda, "has no CUDA, so the GPUs of a 'cuda' endpoint would"),
    "no image for the hardware": (
        decision(),
        without_cpu_image,
        "release 'sample' has no decision image for cpu; it has cuda, graviton",
    ),
    "no model for the kind": (
        decision(),
        without_decision_model,
        "release 'sample' has no model for the role 'decision'; it has chat",
    ),
    "no model for the role": (
        decision(model="large"),
        None,
        "release 'sample' has no model for the role 'large'; it has chat, decision",
    ),
    "a flag that the build of llama.cpp has no more": (
        decision(kind="chat", environment={"SM_LLAMA_CPP_NO_MMAP": "true"}),
        lambda data: data["images"]["chat"]["cpu"].update(llama_cpp="b10964"),
        "the flag 'no-mmap' would stop the container of llama.cpp b10964",
    ),
}


@pytest.mark.parametrize(("endpoint", "change", "sentence"), RELEASES_REFUSED.values(), ids=RELEASES_REFUSED)
def test_release_refused_by_environment(
    endpoint: dict[str, Any], change: Callable[[dict[str, Any]], None] | None, sentence: str
) -> None:
    content = manifest()
    if change is not None:
        change(content)
    release = parse_release(content, source="sample.json")
    with pytest.raises(CommandError) as refused:
        check_release(environment(endpoint), release)
    assert "release 'sample' cannot run in environment 'test'" in refused.value.message
    assert "- endpoints.one: " in refused.value.message
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("images", "decision", "cpu", "digest"), "latest", "'latest', which is not a digest: a tag can be moved"),
        (("images", "chat", "cpu", "digest"), "sha256:abc", "'sha256:abc', which is not a digest"),
        (("images", "decision", "tpu"), {}, "images.decision.tpu.[key]: Input should be 'cpu', 'graviton' or 'cuda'"),
        (("images", "decision", "cpu", "architecture"), "riscv", "Input should be 'x86_64' or 'arm64' (it is 'riscv')"),
        (("models", "chat", "key"), "models/gemma/", "does not contain manifest_sha256"),
        (("models", "chat", "files"), [], "models.chat.files: Tuple should have at least 1 item"),
        (("models", "chat", "file"), "other.gguf", "file 'other.gguf' is not one of its files: gemma-3-270m-q4_k_m.g"),
        (("models",), {}, "models: Dictionary should have at least 1 item"),
        (("format",), "steelyard-release/2", "format: Input should be 'steelyard-release/1'"),
        (("extra",), 1, "extra: there is no such field"),
    ],
)
def test_manifest_refused(path: tuple[str, ...], value: Any, sentence: str) -> None:
    content = manifest()
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(CommandError) as refused:
        parse_release(content, source="r.json")
    assert sentence in refused.value.message
    assert "r.json" in refused.value.message


def test_manifest_key_must_be_a_prefix() -> None:
    content = manifest()
    content["models"]["chat"]["key"] += "model.tar.gz"
    with pytest.raises(CommandError, match="is not a prefix: end it in '/'"):
        parse_release(content, source="r.json")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("steelyard-models", None),
        ("a-1", None),
        ("a" * 63, None),
        ("ab", "it has 2 characters"),
        ("a" * 64, "it has 64 characters"),
        ("with.dot", "it has a dot"),
        ("Upper", "lower-case letters"),
        ("under_score", "lower-case letters"),
        ("-begin", "begin and end"),
        ("end-", "begin and end"),
        ("xn--models", "begin with 'xn--'"),
        ("models-s3alias", "end with '-s3alias'"),
        ("models--x-s3", "end with '--x-s3'"),
    ],
)
def test_bucket_names(name: str, fault: str | None) -> None:
    found = bucket_name_fault(name)
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize("name", environment_names())
def test_ours_are_accepted_with_the_sample(name: str) -> None:
    check_release(load_environment(name), load_release())


def test_there_are_three() -> None:
    assert environment_names() == ["dev", "prod", "staging"]


def test_production_outlives_its_stacks_and_builds_nothing() -> None:
    prod = load_environment("prod")
    assert prod.removal_policy == "retain"
    assert prod.account is not None
    assert prod.builds.images == ()
    assert prod.account in load_environment("staging").images.pull_accounts


@pytest.mark.parametrize("name", environment_names())
def test_registries_that_ours_pull_from_outlive_their_environments(name: str) -> None:
    account = load_environment(name).images.account
    for owner in map(load_environment, environment_names()):
        if account is not None and owner.account == account:
            assert owner.removal_policy == "retain", owner.name


def test_who_keeps_images_may_share_them_and_who_shares_none_may_destroy() -> None:
    shared = environment(images={"pull_accounts": ["444455556666"]}, removal_policy="retain")
    assert shared.images.pull_accounts == ("444455556666",)
    assert environment(images={"pull_accounts": []}).removal_policy == "destroy"


@pytest.mark.parametrize(
    ("load", "what", "known"),
    [
        (lambda folder: load_environment("none", folder=folder), "environment 'none'", "Known environments: one."),
        (lambda folder: load_release("none", folder=folder), "release 'none'", "Known releases: first."),
        (lambda folder: load_release(str(folder / "gone.json"), folder=folder), "gone.json'", "Known releases: first."),
    ],
    ids=["environment", "release", "path"],
)
def test_missing_files(load: Callable[[Path], Any], what: str, known: str, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("")
    (tmp_path / "first.json").write_text("")
    with pytest.raises(CommandError, match="there is no") as refused:
        load(tmp_path)
    assert what in refused.value.message
    assert known in (refused.value.hint or "")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("region = ")
    with pytest.raises(CommandError, match="cannot read the environment file"):
        load_environment("bad", folder=tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CommandError, match="cannot read the release manifest"):
        load_release("bad", folder=tmp_path)


def test_a_release_is_in_the_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps(manifest()))
    with pytest.raises(CommandError, match=r"must be called sample\.json"):
        load_release(str(tmp_path / "other.json"))


def test_sample_names_the_embedded_model() -> None:
    entry = catalogue()["gemma-3-270m"]
    content = model_manifest(entry)
    for role in ("chat", "decision"):
        model = load_release().model(role)
        assert model.key == model_prefix(entry, content)
        assert model.manifest_sha256 == manifest_sha256(content)
        assert model.file == entry.file.name
        assert model.objects() == {entry.file.name: (entry.file.size, entry.file.sha256)}
        assert model.bytes == entry.file.size


def test_model_manifest_is_a_function_of_the_entry() -> None:
    entry = catalogue()["gemma-3-270m"]
    assert model_manifest(entry) == model_manifest(entry.model_copy(deep=True))
    assert json.loads(model_manifest(entry))["files"][0]["sha256"] == entry.file.sha256
    other = entry.model_copy(update={"summary": "Other words"})
    assert model_manifest(other) == model_manifest(entry)


def test_model_manifest_needs_the_size() -> None:
    pinned = catalogue()["gemma-3-270m"]
    sizeless = pinned.file.model_copy(update={"size": None})
    unpinned = pinned.model_copy(update={"files": (sizeless,)})
    with pytest.raises(CommandError, match="does not say how large"):
        model_manifest(unpinned)
    assert json.loads(model_manifest(unpinned, {unpinned.file.name: 5}))["files"][0]["size"] == 5
    with pytest.raises(CommandError, match="has 5 bytes; the catalogue says 253113024"):
        model_manifest(catalogue()["gemma-3-270m"], {"gemma-3-270m-q4_k_m.gguf": 5})


def kinds_within(kind: type) -> set[type]:
    """A part of a file, and those of its fields, however deep."""
    found = {kind}
    for field in fields_of(kind).values():
        stack: list[Any] = [field.annotation]
        while stack:
            annotation = stack.pop()
            if isinstance(annotation, type) and issubclass(annotation, (Strict, Table)):
                found |= kinds_within(annotation)
            stack.extend(getattr(annotation, "__args__", ()))
    return found


def test_every_field_is_described() -> None:
    for model in kinds_within(Environment) | kinds_within(Release):
        for name, field in fields_of(model).items():
            if name not in {"kind", "name"} or model.__name__ in {"Endpoint", "Schedule", "ReleasedModel"}:
                assert field.description, f"{model.__name__}.{name}"


def test_dev_shows_every_field() -> None:
    text = (FOLDER / "dev.toml").read_text()
    for model in kinds_within(Environment):
        for name in fields_of(model):
            if (model, name) != (Environment, "name"):
                assert re.search(rf"\b{name} = |\[(?:[a-z]+\.)*{name}[\].]", text), f"{model.__name__}.{name}"


def code_blocks(lines: list[str]) -> list[list[int]]:
    """Runs of lines that are commented out and would be TOML without the comment sign."""
    blocks: list[list[int]] = []
    for number, line in enumerate(lines):
        if re.match(r"# (?:[a-z0-9_]+ = |\[|\]|    \{)", line):
            if blocks and blocks[-1][-1] == number - 1:
                blocks[-1].append(number)
            else:
                blocks.append([number])
    return blocks


DEV_LINES = (FOLDER / "dev.toml").read_text().splitlines()


@pytest.mark.parametrize("block", code_blocks(DEV_LINES), ids=lambda block: DEV_LINES[block[0]])
def test_what_dev_comments_out_is_in_the_right_place(block: list[int]) -> None:
    lines = list(DEV_LINES)
    for number in block:
        lines[number] = lines[number].removeprefix("# ")
    first = lines[block[0]]
    if first.startswith(("kind", "instance_pool")):
        # An alternative: it replaces the line of the same name, or the other way to say it.
        other = "instance_type = " if first.startswith("instance_pool") else "kind = "
        del lines[next(n for n in range(block[0] - 1, 0, -1) if DEV_LINES[n].startswith(other))]
    data = tomllib.loads("\n".join(lines))
    assert "there is no such field" not in refusal(data)


def refusal(data: dict[str, Any]) -> str:
    """Why these are refused together, or nothing: some examples need another environment than dev."""
    try:
        parse_environment(data, name="dev", source="dev.toml")
    except CommandError as refused:
        return refused.message
    return ""


def test_every_field_in_dev_has_a_comment() -> None:
    for before, line in itertools.pairwise(DEV_LINES):
        if line == "[endpoints.chat]":
            break
        if re.match(r"[a-z_]+ = ", line):
            assert before.startswith(("#", "[")), line
        if re.match(r"\[[a-z.]+\]$", line):
            assert before.startswith("#"), line
