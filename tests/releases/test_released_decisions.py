"""Registered decisions in releases: packed, put beside the model they belong to, and refused beside any other."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from accounts import Account

from registered_decisions import TEAMS, contract, write_decision
from steelyard.aws.session import Aws
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import DECISIONS_VARIABLE, Environment
from steelyard.releases import packing
from steelyard.releases.assemble import build_release, matching_release, place_decisions
from steelyard.releases.checks import State, findings, served_faults
from steelyard.releases.codebuild import Watcher
from steelyard.releases.compatibility import check_release
from steelyard.releases.decided import decide_again
from steelyard.releases.difference import changes
from steelyard.releases.manifest import Release, load_release
from steelyard.releases.packing import DECISIONS, PackedDecision, pack, place
from steelyard.releases.plan import plan_for
from steelyard.releases.served import served_by
from steelyard_base.exit_codes import CommandError
from steelyard_runtime.decisions.registry import load_registry

EXAMPLE = "support-route@1"
LETTERS = "support-route@3"


class Silent:
    """A watcher that tells nobody."""

    def line(self, label: str, text: str) -> None: ...

    def state(self, label: str, text: str) -> None: ...

    def note(self, label: str, text: str) -> None: ...


SILENT: Watcher = Silent()


def environment(**changes: Any) -> Environment:
    endpoint = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", **changes}
    data = {"region": "us-east-1", "removal_policy": "destroy", "endpoints": {"one": endpoint}}
    return parse_environment(data, name="test", source="test.toml")


def sample(**changes: Any) -> Release:
    """The sample release, its one decision changed."""
    data = load_release().model_dump(mode="json", exclude_none=True)
    decision = data["decision_contracts"][0]
    decision["head"] = {**decision["head"], **changes}
    return Release.model_validate(data)


def letters(folder: Path, **changes: Any) -> tuple[PackedDecision, ...]:
    """A decision without a head, which belongs to every model."""
    shutil.rmtree(folder, ignore_errors=True)
    write_decision(folder / "support-route", contract(TEAMS, readout={"strategy": "letters"}, **changes))
    return pack([LETTERS], folder=folder)


def test_the_sample_has_the_example_of_this_checkout() -> None:
    assert load_release().decision_contracts == tuple(each.released for each in pack([EXAMPLE]))


def test_a_server_that_loads_what_was_packed_has_what_it_is_told(tmp_path: Path) -> None:
    """The hash in the container's variable is that of the folder that the container gets."""
    served = served_by(load_release(), environment().endpoints["one"])
    (packed,) = pack([EXAMPLE])
    for path, ((_, file), _) in served.decision_objects().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(packed.files[file])
    assert served.variables == {DECISIONS_VARIABLE: load_registry(tmp_path / "decisions").sha256}


def test_what_is_packed_is_named_and_of_that_version(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no decision nothing@1"):
        pack(["nothing@1"])
    with pytest.raises(CommandError, match="has support-route@1, and support-route@2 is wanted"):
        pack(["support-route@2"])
    shutil.copytree(DECISIONS / "support-route", tmp_path / "support-route")
    (tmp_path / "support-route" / "head.safetensors").write_bytes(b"others")
    with pytest.raises(CommandError, match=r"support-route@1 cannot be released: .* names [0-9a-f]{64}; fit the head"):
        pack([EXAMPLE], folder=tmp_path)


def test_an_endpoint_serves_what_it_names_or_what_belongs_to_its_model() -> None:
    release = load_release()
    model = release.model("decision")
    assert [each.name for each in served_by(release, environment().endpoints["one"]).decisions] == [EXAMPLE]
    assert served_by(release, environment(decisions=[]).endpoints["one"]).key == model.key
    named = served_by(release, environment(decisions=[EXAMPLE]).endpoints["one"])
    assert named.key.startswith("served/gemma-3-270m/")
    assert set(named.objects()) == {*model.objects(), *named.decision_objects()}
    assert served_by(release, environment(kind="chat").endpoints["one"]).decisions == ()
    with pytest.raises(CommandError, match=r"has no decision other@1; it has support-route@1"):
        served_by(release, environment(decisions=["other@1"]).endpoints["one"])
    of_another = sample(model_sha256="0" * 64)
    assert served_by(of_another, environment().endpoints["one"]).decisions == ()


def test_other_bytes_lie_under_another_key() -> None:
    one = environment().endpoints["one"]
    data = load_release().model_dump(mode="json", exclude_none=True)
    data["decision_contracts"][0]["files"][0]["sha256"] = "0" * 64
    assert served_by(Release.model_validate(data), one).key != served_by(load_release(), one).key


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_sha256": "0" * 64}, "was fitted on the model file 0{64}, and gemma-3-270m has a5fd3b62"),
        ({"llama_cpp": "b10435"}, "llama.cpp b10435, and bundled-0.3.36 serves it; fit it with that build: steelyard"),
    ],
)
def test_a_head_of_something_else_is_refused_before_anything_starts(change: dict[str, str], sentence: str) -> None:
    check_release(environment(), load_release())
    with pytest.raises(CommandError, match=sentence):
        check_release(environment(decisions=[EXAMPLE]), sample(**change))


def test_a_shadow_that_the_endpoint_does_not_get_is_refused() -> None:
    shadows = {"STEELYARD_SHADOW_DECISIONS": f"{EXAMPLE}, support-route@2"}
    with pytest.raises(CommandError, match="names support-route@2, which the endpoint does not serve; it serves supp"):
        check_release(environment(environment=shadows), load_release())
    check_release(environment(environment={"STEELYARD_SHADOW_DECISIONS": EXAMPLE}), load_release())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "chat", "decisions": [EXAMPLE]}, "the published container for chat serves none"),
        ({"decisions": [EXAMPLE, EXAMPLE]}, "names support-route@1 twice"),
        ({"decisions": ["support-route"]}, "decisions"),
        ({"environment": {DECISIONS_VARIABLE: "0" * 64}}, "which the endpoint sets itself"),
    ],
)
def test_an_environment_s_decisions_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        environment(**fields)


def test_a_release_of_new_decisions_builds_nothing_and_they_lie_beside_the_model(
    aws: Aws, account: Account, tmp_path: Path
) -> None:
    def released(decisions: tuple[PackedDecision, ...]) -> Release:
        plan = dataclasses.replace(plan_for(account.environment()), decisions=decisions)
        order = account.order(plan=plan)
        release, _ = build_release(aws, order, SILENT, folder=tmp_path / "releases", poll_s=0.05)
        assert matching_release(plan, order.checkout.source, order.bases, folder=tmp_path / "releases") == release
        return release

    def looked(release: Release) -> dict[str, State]:
        found = findings(aws, account.environment(), release, bucket=account.bucket)
        return {each.item: each.state for each in found if each.item.startswith("decisions")}

    first = released(letters(tmp_path / "decisions"))
    builds = len(account.builds("ModelProjectGemma3270m")), len(account.builds("ImageProjectCpu"))
    packed = letters(tmp_path / "decisions", policy={"review": {"probability": 0.4}})
    second = released(packed)
    assert builds == (len(account.builds("ModelProjectGemma3270m")), len(account.builds("ImageProjectCpu")))
    assert {each.part for each in changes(first, second)} == {f"decision_contracts.{LETTERS}"}
    assert first.models == second.models
    assert first.images == second.images
    item = f"decisions of decision ({LETTERS})"
    for release in (first, second):
        assert looked(release) == {item: State.OK}
    # Deleted, it is told, and put back from a checkout that has it; another one is not put there in its place.
    served = served_by(second, account.environment().endpoints["decision"])
    lost = f"{served.key}decisions/{LETTERS}/contract.toml"
    account.client("s3").delete_object(Bucket=account.bucket, Key=lost)
    assert looked(second) == {item: State.MISSING}
    with pytest.raises(CommandError, match=f"has another {LETTERS} than the release"):
        place(aws, served, letters(tmp_path / "others"), bucket=account.bucket)
    assert looked(second) == {item: State.MISSING}
    place_decisions(aws, account.environment(), second, packed, bucket=account.bucket, say=lambda _: None)
    assert list(served_faults(aws, served, bucket=account.bucket)) == []


def test_the_same_images_and_models_with_the_decisions_of_now(
    aws: Aws, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = letters(tmp_path / "decisions")
    order = account.order(plan=dataclasses.replace(plan_for(account.environment()), decisions=packed))
    first, _ = build_release(aws, order, SILENT, folder=tmp_path / "releases", poll_s=0.05)
    builds = len(account.builds("ImageProjectCpu"))
    monkeypatch.setattr(packing, "DECISIONS", tmp_path / "decisions")

    def again(*names: str) -> Release:
        found, path = decide_again(
            aws, account.environment(), first, names, bucket=account.bucket, folder=tmp_path / "releases"
        )
        assert load_release(str(path)) == found
        return found

    assert again() == first
    letters(tmp_path / "decisions", policy={"review": {"probability": 0.4}})
    second = again()
    assert {each.part for each in changes(first, second)} == {f"decision_contracts.{LETTERS}"}
    found = findings(aws, account.environment(), second, bucket=account.bucket)
    assert {each.state for each in found} == {State.OK}
    assert len(account.builds("ImageProjectCpu")) == builds
    monkeypatch.setattr(packing, "DECISIONS", DECISIONS)
    with pytest.raises(
        CommandError, match=r"fitted with llama.cpp bundled-0\.3\.36, and the image for cpu gets b10433"
    ):
        again(EXAMPLE)


def with_head_for(build: str, folder: Path) -> Path:
    """The example in ``folder``, with the same numbers for another build of llama.cpp beside its own head."""
    place = shutil.copytree(DECISIONS / "support-route", folder / "support-route")
    beside = place / "heads" / build
    beside.mkdir(parents=True)
    shutil.copy(place / "head.safetensors", beside)
    head = json.loads((place / "head.json").read_text())
    head["bound"]["llama_cpp"] = build
    (beside / "head.json").write_text(json.dumps(head))
    return folder


def test_a_decision_with_two_heads_is_released_with_those_of_the_images(
    aws: Aws, account: Account, tmp_path: Path
) -> None:
    packed = pack([EXAMPLE], folder=with_head_for("b10433", tmp_path / "decisions"))
    assert [each.released.head.llama_cpp for each in packed if each.released.head] == ["bundled-0.3.36", "b10433"]
    plan = dataclasses.replace(plan_for(account.environment()), decisions=packed)
    order = account.order(plan=plan)
    release, _ = build_release(aws, order, SILENT, folder=tmp_path / "releases", poll_s=0.05)
    assert release.decision_contracts == (packed[1].released,)
    assert matching_release(plan, order.checkout.source, order.bases, folder=tmp_path / "releases") == release


def test_each_endpoint_gets_the_head_for_its_build(tmp_path: Path) -> None:
    """One release for images of two builds: what each is given, and where it lies, differ."""
    here, there = pack([EXAMPLE], folder=with_head_for("b10433", tmp_path))
    data = load_release().model_dump(mode="json", exclude_none=True)
    data["decision_contracts"] = [each.released.model_dump(mode="json") for each in (there, here)]
    both = Release.model_validate(data)
    one = environment().endpoints["one"]
    assert served_by(both, one).decisions == (here.released,)  # a sample's are processes of this checkout
    check_release(environment(decisions=[EXAMPLE]), both)
    on_image = both.model_copy(update={"sample": False})
    assert served_by(on_image, one).decisions == (there.released,)
    assert served_by(on_image, one).key != served_by(both, one).key
    assert {each.part for each in changes(load_release(), both)} == {
        *(f"decision_contracts.{EXAMPLE}", f"decision_contracts.{EXAMPLE} with b10433"),
        f"decision_contracts.{EXAMPLE} with bundled-0.3.36",
    }
    data["decision_contracts"][1]["head"]["llama_cpp"] = "b10433"
    with pytest.raises(ValueError, match="support-route@1 is there twice; a version has one contract, and one head"):
        Release.model_validate(data)


def test_a_head_for_another_question_is_not_packed(tmp_path: Path) -> None:
    folder = with_head_for("b10433", tmp_path)
    path = folder / "support-route" / "heads" / "b10433" / "head.json"
    head = json.loads(path.read_text())
    head["bound"]["question_sha256"] = "0" * 64
    path.write_text(json.dumps(head))
    with pytest.raises(CommandError, match="heads/b10433 was fitted for another question"):
        pack([EXAMPLE], folder=folder)


def test_a_head_of_another_build_or_model_is_refused_before_anything_is_built(
    aws: Aws, account: Account, tmp_path: Path
) -> None:
    folder = tmp_path / "support-route"
    shutil.copytree(DECISIONS / "support-route", folder)
    head = folder / "head.json"

    def refusal() -> str:
        plan = dataclasses.replace(plan_for(account.environment()), decisions=pack([EXAMPLE], folder=tmp_path))
        with pytest.raises(CommandError) as refused:
            build_release(aws, account.order(plan=plan), SILENT, folder=tmp_path / "releases", poll_s=0.05)
        return refused.value.message

    told = refusal()
    assert "with llama.cpp bundled-0.3.36, and the image for cpu gets b10433" in told
    said = json.loads(head.read_text())
    said["bound"] |= {"model_sha256": "0" * 64, "llama_cpp": "b10433"}
    head.write_text(json.dumps(said))
    assert f"was fitted on the model file {'0' * 64}, and the release gets gemma-3-270m" in refusal()
    assert account.builds("ImageProjectCpu") == []
