"""``docker`` on buildah and podman: what builds use works, everything else is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from steelyard_localcloud.containers.docker_on_buildah import location
from steelyard_localcloud.containers.storage import VARIABLE, write_storage

pytestmark = pytest.mark.containers

COMMAND = [sys.executable, "-I", "-m", "steelyard_localcloud.containers.docker_on_buildah"]

Docker = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_storage(tmp_path_factory.mktemp("containers"))


@pytest.fixture
def docker(storage: Path, tmp_path: Path) -> Docker:
    environment = {**os.environ, VARIABLE: str(storage), "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    environment.pop("CONTAINERS_REGISTRIES_CONF", None)

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = {**environment, **variables}
        return subprocess.run([*COMMAND, *words], env=given, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that needs nothing, and how to make an image of it."""
    folder = tmp_path_factory.mktemp("context")
    (folder / "say.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        'int main(int n, char **w) { printf("%d %s\\n", getuid(), n > 1 ? w[1] : "-"); return n > 2 ? 7 : 0; }\n'
    )
    subprocess.run(["cc", "-static", "-o", folder / "say", folder / "say.c"], check=True)
    (folder / "its.Dockerfile").write_text(
        'FROM scratch\nARG COLOR\nLABEL color="${COLOR}"\nCOPY say /say\nRUN ["/say", "built"]\nENTRYPOINT ["/say"]\n'
    )
    return folder


def test_an_image_is_built_looked_at_run_and_removed(docker: Docker, context: Path, storage: Path) -> None:
    built = docker(
        *("buildx", "build", "--file", str(context / "its.Dockerfile"), "--build-arg", "COLOR=red", "--pull", "--load"),
        *("--provenance=false", "--sbom=false", "--progress", "plain", "--tag", "localhost/say:1", str(context)),
    )
    assert built.returncode == 0, built.stderr
    assert "0 built" in built.stdout
    looked = docker("image", "inspect", "--format", "{{.ManifestType}} {{.Labels.color}}", "localhost/say:1")
    assert looked.stdout.split() == ["application/vnd.docker.distribution.manifest.v2+json", "red"]
    ran = docker("run", "--rm", "--network", "none", "--read-only", "localhost/say:1", "serve")
    assert (ran.returncode, ran.stdout) == (0, "0 serve\n"), ran.stderr
    assert docker("run", "--rm", "localhost/say:1", "serve", "--rm").returncode == 7
    assert docker("tag", "localhost/say:1", "localhost/say:2").returncode == 0
    assert docker("rmi", "--force", "localhost/say:1", "localhost/say:2").returncode == 0
    assert docker("image", "inspect", "localhost/say:1").returncode != 0
    assert str(storage.parent) not in Path("/proc/mounts").read_text()  # the folder can be removed


def test_a_stopped_build_takes_its_container_with_it(context: Path, storage: Path, tmp_path: Path) -> None:
    """A container is no child of the command that started it, and its mount would keep its folder from removal."""
    spec = """
    version: 0.2
    phases:
      build:
        commands:
          - docker build --quiet --file its.Dockerfile --tag localhost/wait:1 .
          - docker run --detach --name waiting localhost/wait:1 wait
          - echo ready; sleep 600
    """
    (context / "wait.c").write_text("#include <unistd.h>\nint main(int n) { if (n > 1) sleep(600); return 0; }\n")
    source = tmp_path / "source"
    source.mkdir()
    subprocess.run(["cc", "-static", "-o", source / "say", context / "wait.c"], check=True)
    text = (context / "its.Dockerfile").read_text().replace(', "built"', "")
    (source / "its.Dockerfile").write_text(text)
    (tmp_path / "spec.yml").write_text(textwrap.dedent(spec))
    words = [
        sys.executable,
        "-m",
        "steelyard_localcloud.codebuild.runner",
        "--buildspec",
        "spec.yml",
        "--source",
        "source",
    ]
    process = subprocess.Popen(
        [*words, "--result", "result.json"],
        cwd=tmp_path,
        env={**os.environ, VARIABLE: str(storage), "STEELYARD_DOCKER": "buildah"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("ready"):
        assert line, "the build ended"
    assert str(storage.parent) in Path("/proc/mounts").read_text()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    listed = subprocess.run(
        ["podman", "ps", "--all", "--quiet"],
        env={**os.environ, VARIABLE: str(storage)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == ""
    assert str(storage.parent) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "docker  is not known"),
        (("swarm", "init"), "docker swarm is not known"),
        (("buildx", "bake"), "docker buildx bake is not known"),
        (("image", "prune"), "docker image prune is not known"),
        (("run", "--privileged", "a"), "docker run: unrecognized arguments: --privileged"),
        (("run", "--gpus", "all", "a"), "docker run --gpus is not known"),
        (("build", "--provenance=true", "."), "argument --provenance: invalid choice: 'true'"),
        (("build", "--ssh", "default", "."), "docker build: unrecognized arguments: --ssh"),
        (("login", "-u", "a", "-p", "secret", "host"), "arguments are required: --password-stdin"),
        (("push", "--all-tags", "a"), "docker push: unrecognized arguments: --all-tags"),
    ],
)
def test_what_is_not_known_is_refused(docker: Docker, words: tuple[str, ...], said: str) -> None:
    refused = docker(*words)
    assert refused.returncode == 125
    assert said in refused.stderr
    assert "stand-in" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_version_says_what_it_is(docker: Docker) -> None:
    said = docker("version").stdout
    assert "stand-in" in said
    assert "buildah" in said


def test_a_registry_is_where_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "registries.conf"
    file.write_text('[[registry]]\nprefix = "a.example"\nlocation = "127.0.0.1:5/a.example"\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(file))
    assert location("a.example") == "127.0.0.1:5/a.example"
    assert location("a.example/team/image:1") == "127.0.0.1:5/a.example/team/image:1"
    assert location("a.example.org/image") == "a.example.org/image"
    assert location("b.example/image") == "b.example/image"
    monkeypatch.delenv("CONTAINERS_REGISTRIES_CONF")
    assert location("a.example") == "a.example"


def test_an_unreadable_file_is_a_sentence(docker: Docker, tmp_path: Path) -> None:
    refused = docker("push", "a.example/b:1", CONTAINERS_REGISTRIES_CONF=str(tmp_path / "missing.conf"))
    assert refused.returncode == 125
    assert "missing.conf cannot be read" in refused.stderr


def test_the_storage_is_ours(tmp_path: Path) -> None:
    made = write_storage(tmp_path / "a")
    assert f'graphroot = "{tmp_path / "a" / "graph"}"' in made.read_text()
    before = made.read_text()
    assert write_storage(tmp_path / "a").read_text() == before
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["storage.conf"]
