"""A release goes from one environment to another in a local cloud, by evidence, and comes back.

Templates go to CloudFormation without the CDK's command line, which other tests run: each start of it takes seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from by_templates import TEMPLATES, ByTemplates
from world import PROCESSES, Model, Wanted, digest

import tiny_models
from environment_assemblies import app_of
from steelyard import cli
from steelyard.aws.cloudformation import find_stack
from steelyard.aws.session import Aws
from steelyard.commands import promotion
from steelyard.deploy import deployment
from steelyard.deploy.local_cloud import reached
from steelyard.deploy.promotion import FromSource, Place, check_running, tag
from steelyard.environments import files
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release, load_release, parse_release
from steelyard.releases.record import Occasion, newest_events, recorded, rollback_target
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_localcloud.cloud import LocalCloud

ENDPOINT = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", "threads": 1}
BASE = {
    "region": "us-east-1",
    "removal_policy": "destroy",
    "log_retention_days": 1,
    "endpoints": {"decision": ENDPOINT},
}
KEPT = {
    "cases_at_least": 2,
    "accuracy_at_least": 0.0,
    "ece_at_most": 1.0,
    "p95_ms_at_most": 600_000,
    "critical_findings_at_most": 0,
}
DECISION = {"question": "Which team?", "options": [{"id": "billing"}, {"id": "shipping"}]}
CASES = [{"state": "Charged twice.", "label": "billing"}, {"state": "Where is it?", "label": "shipping"}]

Run = Callable[..., tuple[int, str]]


def environments() -> dict[str, Environment]:
    pulled = {"images": {"account": "000000000000", "repository": "steelyard-dev"}}
    return {
        "dev": parse_environment(BASE, name="dev", source="the test"),
        "staging": parse_environment({**BASE, **pulled, "gates": KEPT}, name="staging", source="the test"),
        "strict": parse_environment({**BASE, **pulled, "gates": {"log_loss_at_most": 0}}, name="strict", source="x"),
        "apart": parse_environment(BASE, name="apart", source="the test"),
    }


ENVIRONMENTS = environments()


@cache
def assembly(environment: str, manifest: str) -> str:
    """The templates of an environment with a release, made once."""
    release = parse_release(json.loads(manifest), source="the test")
    folder: str = app_of(ENVIRONMENTS[environment], release).synth().directory
    return folder


class Templates(ByTemplates):
    """Deploys by CloudFormation itself."""

    interrupted: ClassVar[bool] = False

    def synth(self) -> None:
        manifest = json.dumps(json.loads(Path(self.release).read_text()), sort_keys=True)
        shutil.rmtree(self.assembly, ignore_errors=True)
        shutil.copytree(assembly(self.environment, manifest), self.assembly)

    def deploy(self, *stacks: str, adopt: bool = False) -> None:
        if self.interrupted and not stacks:
            raise KeyboardInterrupt
        super().deploy(*stacks, adopt=adopt)


class Clouds:
    """A local cloud with ``dev`` in it, and two releases.

    Args:
        cloud: The local cloud.
        folder: For the releases and their models.
        bootstrapped: Whether the CDK has prepared it; if not, something stands in for that.
    """

    def __init__(self, cloud: LocalCloud, folder: Path, *, bootstrapped: bool = False) -> None:
        self.cloud, self.folder = cloud, folder
        self.aws = Aws("us-east-1")
        cloud.client("s3").create_bucket(Bucket=TEMPLATES)
        if not bootstrapped:
            self._stand_in_for_the_bootstrap()
        self.image = digest()
        self.models: dict[str, Model] = {}
        self.first = self.release("first", tiny_models.write("llama", folder / "one.gguf", seed=1))
        self.second = self.release("second", tiny_models.write("llama", folder / "two.gguf", seed=2))
        self.broken = self.release("broken", tiny_models.write_truncated(folder / "broken.gguf"))

    def _stand_in_for_the_bootstrap(self) -> None:
        cloud = self.cloud
        cloud.client("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")
        template = json.dumps({"Resources": {"Nothing": {"Type": "AWS::SNS::Topic"}}})
        cloud.client("cloudformation").create_stack(StackName="CDKToolkit", TemplateBody=template)

    def release(self, name: str, path: Path) -> Release:
        model = Model(path, f"tiny-{name}", json.dumps({"name": name}).encode())
        data = {
            "format": "steelyard-release/1",
            "id": name,
            "sample": True,
            "models": {"decision": model.released()},
            "images": {"decision": {"cpu": {"digest": self.image, "architecture": "x86_64", "llama_cpp": "b10433"}}},
        }
        (self.folder / f"{name}.json").write_text(json.dumps(data))
        self.models[name] = model
        return parse_release(data, source="the test")

    def deploy(self, environment: str, name: str) -> None:
        """Deploy as ``up`` does."""
        release = load_release(str(self.folder / f"{name}.json"))
        program = Templates(
            environment=environment, release=str(self.folder / f"{name}.json"), assembly=self.folder / "up"
        )
        deployment.deploy(
            self.aws, ENVIRONMENTS[environment], release, program, lambda _: None, note=lambda _: None, supplies=self
        )

    def provide_model(self, aws: Aws, model: Any, *, bucket: str) -> None:
        mine = self.models[model.name.removeprefix("tiny-")]
        s3 = aws.client("s3")
        metadata = {"sha256": model.files[0].sha256}
        s3.upload_file(str(mine.path), bucket, model.key + mine.path.name, ExtraArgs={"Metadata": metadata})
        s3.put_object(Bucket=bucket, Key=model.key + "model-manifest.json", Body=mine.manifest)

    def provide_image(self, digest: str, *, repository: str) -> None:
        self.cloud.register_image(repository, digest)

    def place(self, name: str) -> Place:
        return Place(aws=self.aws, environment=ENVIRONMENTS[name])

    def serves(self, name: str) -> str:
        """Id of the release that is proved to run."""
        stack = find_stack(self.aws, f"Steelyard-{name}-Endpoint-decision")
        assert stack is not None
        release = {"first": self.first, "second": self.second}[stack.outputs["Release"]]
        assert check_running(self.place(name), release)
        return release.id

    def told(self, name: str) -> list[tuple[str, str, str]]:
        """Action, release and outcome of each event, the oldest first."""
        events = newest_events(self.aws, ENVIRONMENTS[name], bucket=self.place(name).bucket(), most=100)
        return [(each.action, each.release_id, each.outcome) for each in reversed(events)]


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    with (
        LocalCloud(tmp_path_factory.mktemp("cloud"), environment=PROCESSES, longest_wait_s=0.2) as cloud,
        reached(cloud.environment()),
    ):
        clouds = Clouds(cloud, tmp_path_factory.mktemp("releases"))
        clouds.deploy("dev", "first")
        yield clouds


@pytest.fixture
def run(clouds: Clouds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command in this process; gives its exit code and all that it said."""
    monkeypatch.setattr(files, "load_environment", ENVIRONMENTS.__getitem__)
    monkeypatch.setattr(promotion, "load_environment", ENVIRONMENTS.__getitem__)
    monkeypatch.setattr(promotion, "Cdk", lambda **given: Templates(**given, assembly=tmp_path / "cdk.out"))

    def run(*words: str | Path) -> tuple[int, str]:
        code = cli.run(list(map(str, words)))
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture
def evidence(run: Run, tmp_path: Path) -> Path:
    """An evaluation of what runs in ``dev``."""
    decision, cases, out = tmp_path / "teams.json", tmp_path / "cases.jsonl", tmp_path / "evaluation.json"
    decision.write_text(json.dumps(DECISION))
    cases.write_text("".join(json.dumps(each) + "\n" for each in CASES))
    code, said = run(
        *("decision", "evaluate", decision, "--cases", cases, "--endpoint", "decision", "--env", "dev"),
        *("--attacks", "0", "--reversed", "0", "--again", "0", "--out", out),
    )
    assert code == 0, said
    return out


def promoted(run: Run, to: str, *words: str | Path) -> tuple[int, str]:
    return run("release", "promote", "--from", "dev", "--to", to, "--yes", "--no-check", *words)


def test_a_release_without_evidence_or_with_a_missed_gate_is_refused(clouds: Clouds, run: Run, evidence: Path) -> None:
    code, said = promoted(run, "staging")
    assert code == ExitCode.GATE
    assert "there is no evaluation of a decision on tiny-first" in said
    assert "steelyard decision evaluate DECISION --cases CASES.jsonl --endpoint decision --env dev" in said

    code, said = promoted(run, "strict", "--evidence", evidence)
    figure = json.loads(evidence.read_text())["figures"]["log_loss"]["value"]
    assert code == ExitCode.GATE
    assert f"log loss, at most 0: it is {figure:.4g}" in said

    evaluation = json.loads(evidence.read_text())
    evaluation["target"]["model"]["sha256"] = "0" * 64
    other = evidence.with_name("other.json")
    other.write_text(json.dumps(evaluation))
    code, said = promoted(run, "staging", "--evidence", other)
    assert (code, "is not of what runs behind decision of dev now: sha256 was 0000" in said) == (ExitCode.USAGE, True)

    code, said = promoted(run, "apart", "--evidence", evidence)
    assert (code, "account 000000000000 of apart cannot get all of release first" in said) == (ExitCode.FAILED, True)
    names = {each["StackName"] for each in clouds.cloud.client("cloudformation").describe_stacks()["Stacks"]}
    assert not [name for name in names if name.startswith(tuple(f"Steelyard-{each}" for each in ("strict", "apart")))]


def test_what_runs_is_looked_at_and_not_only_what_was_deployed(clouds: Clouds) -> None:
    """The stack names the release, and its model is another: by its files, and by what the server says of itself."""
    place, model = clouds.place("dev"), clouds.first.model("decision")
    assert check_running(place, clouds.first)["decision"]["sha256"] == model.weights_sha256
    (file,) = model.files
    for other, said in (
        (
            model.model_copy(update={"key": f"models/other/{'0' * 64}/"}),
            "has the files s3://.*models/tiny-first/.*, and",
        ),
        (
            model.model_copy(update={"files": (file.model_copy(update={"sha256": "0" * 64}),)}),
            "says that it has the model",
        ),
    ):
        with pytest.raises(CommandError, match=said):
            check_running(place, clouds.first.model_copy(update={"models": {"decision": other}}))
    with pytest.raises(CommandError, match="was deployed with release first, not with second"):
        check_running(place, clouds.second)


def test_promoted_twice_interrupted_killed_and_rolled_back(
    clouds: Clouds, run: Run, evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--evidence", evidence, "--why", "its first evaluation")
    monkeypatch.setattr(Templates, "interrupted", True)
    code, said = promoted(run, "staging", *words)
    assert code == ExitCode.INTERRUPTED
    assert clouds.told("staging") == [("promote", "first", "begun"), ("promote", "first", "failed")]
    monkeypatch.setattr(Templates, "interrupted", False)

    code, said = promoted(run, "staging", *words)
    assert code == 0, said
    assert clouds.serves("staging") == "first"
    assert clouds.told("staging")[2:] == [("promote", "first", "begun"), ("promote", "first", "done")]
    code, said = promoted(run, "staging")
    assert (code, "runs in staging already; nothing was changed" in said) == (0, True)
    assert len(clouds.told("staging")) == 4

    code, said = run("release", "rollback", "--env", "staging", "--yes")
    assert (code, "has no release before first" in said) == (ExitCode.USAGE, True)

    clouds.deploy("staging", "second")
    assert clouds.serves("staging") == "second"
    killed(clouds, "staging", "first")
    assert clouds.told("staging")[-1] == ("deploy", "first", "begun")
    code, said = run("release", "rollback", "--env", "staging", "--yes")
    assert (code, clouds.serves("staging")) == (0, "second"), said

    code, said = run("release", "rollback", "--env", "staging", "--yes", "--why", "worse on Mondays")
    assert (code, clouds.serves("staging")) == (0, "first"), said

    with pytest.raises(CommandError, match="Endpoint-decision"):
        clouds.deploy("staging", "broken")
    assert clouds.told("staging")[-1] == ("deploy", "broken", "failed")
    code, said = run("release", "rollback", "--env", "staging", "--yes")
    assert (code, clouds.serves("staging")) == (0, "first"), said

    code, said = run("release", "log", "--env", "staging")
    assert code == 0
    for word in ("promote from dev: release first, done", "its first evaluation", "worse on Mondays", "teams, 2 cases"):
        assert word in said
    code, said = run("release", "log", "--env", "staging", "--json")
    events = json.loads(said)
    assert [each["number"] for each in events] == list(range(len(events), 0, -1))
    assert "arn:aws:" in events[0]["by"]
    assert "Charged twice." not in said  # no text of a case


def killed(clouds: Clouds, environment: str, release: str) -> None:
    """Kill a deployment after it has begun."""
    program = f"""
import json, os
from steelyard.aws.session import Aws
from steelyard.environments.files import parse_environment
from steelyard.releases.manifest import load_release
from steelyard.releases.record import Occasion, recorded
environment = parse_environment(json.loads({json.dumps(json.dumps(BASE))}), name={environment!r}, source="x")
release = load_release({str(clouds.folder / f"{release}.json")!r})
bucket = {clouds.place(environment).bucket()!r}
with recorded(Aws("us-east-1"), environment, release, bucket=bucket, occasion=Occasion()):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9


def test_a_model_is_copied_from_where_it_was_or_published(clouds: Clouds) -> None:
    """What the target publishes itself is left to its own project."""

    class Published:
        asked: ClassVar[list[str]] = []

        def provide_model(self, aws: Aws, model: Any, *, bucket: str) -> None:
            self.asked.append(model.name)

        def provide_image(self, digest: str, *, repository: str) -> None:
            raise AssertionError

    supplies = FromSource(source="nowhere", published=Published(), published_models=("tiny-first",))
    supplies.provide_model(clouds.aws, clouds.first.model("decision"), bucket="anywhere")
    assert Published.asked == ["tiny-first"]


def test_images_are_tagged_where_they_are_pulled_from(clouds: Clouds) -> None:
    release = parse_release(Wanted(clouds.models["first"], clouds.image).sealed_data(), source="the test")
    for _ in range(2):  # a tag that is there stays
        tag(clouds.place("dev"), clouds.place("staging"), release, tell=lambda _: None)
    found = clouds.cloud.client("ecr").list_images(repositoryName="steelyard-dev")["imageIds"]
    assert {each.get("imageTag"): each["imageDigest"] for each in found}[f"release-{release.id}-cpu"] == clouds.image


def test_of_two_that_write_at_once_each_gets_a_number_and_nothing_is_overwritten(clouds: Clouds) -> None:
    environment, bucket = ENVIRONMENTS["apart"], clouds.place("dev").bucket()

    def deploy(release: Release) -> None:
        with recorded(Aws("us-east-1"), environment, release, bucket=bucket, occasion=Occasion()):
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(deploy, [clouds.first, clouds.second] * 2))
    events = newest_events(clouds.aws, environment, bucket=bucket, most=100)
    assert [each.number for each in events] == list(range(8, 0, -1))
    assert sorted((each.release_id, each.outcome) for each in events) == sorted(
        [(release, outcome) for release in ("first", "second") for outcome in ("begun", "done")] * 2
    )


def test_a_rollback_never_goes_forward(clouds: Clouds) -> None:
    """Deployed a, b, c; back to b, and then to a; and one that was broken off is done again."""
    environment, bucket = ENVIRONMENTS["strict"], clouds.place("dev").bucket()
    releases = {name: clouds.first.model_copy(update={"id": name}) for name in "abc"}

    def deploy(name: str, *, fails: bool = False, back: bool = False) -> None:
        number = rollback_target(clouds.aws, environment, bucket=bucket).number if back else None
        occasion = Occasion(action="rollback" if back else "deploy", returns_to=number)
        with recorded(clouds.aws, environment, releases[name], bucket=bucket, occasion=occasion):
            if fails:
                raise CommandError("the container does not start")

    def target() -> str:
        return rollback_target(clouds.aws, environment, bucket=bucket).release_id

    with pytest.raises(CommandError, match="no release before the first"):
        target()
    for name in "abbc":
        deploy(name)
    assert target() == "b"
    with pytest.raises(CommandError, match="does not start"):
        deploy("b", fails=True, back=True)
    assert target() == "b"
    deploy("b", back=True)
    assert target() == "a"
    with pytest.raises(CommandError, match="does not start"):
        deploy("c", fails=True)
    assert target() == "b"
    with pytest.raises(CommandError, match="does not start"):
        deploy("b", fails=True, back=True)
    assert target() == "b"
    deploy("b", back=True)
    assert target() == "a"
    deploy("a", back=True)
    with pytest.raises(CommandError, match="no release before a"):
        target()
    (newest, *_) = newest_events(clouds.aws, environment, bucket=bucket, most=1)
    assert (newest.action, newest.release_id, newest.outcome) == ("rollback", "a", "done")


def test_a_reason_is_one_line_that_can_be_printed(run: Run) -> None:
    for why in ("", "two\nlines", "x" * 501):
        code, said = run("release", "rollback", "--env", "dev", "--yes", "--why", why)
        assert (code, f"--why has {len(why)} characters" in said) == (ExitCode.USAGE, True)
