"""Which commit a release is built from, and what is not committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.releases import source
from steelyard.releases.local import stage
from steelyard.releases.source import asset_hash, changes, check_committed, input_files, read_checkout, read_source
from steelyard_base.exit_codes import CommandError, ExitCode


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit of what is built, and a later one of something else."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for path in ("runtime/server.py", "images/cpu.Dockerfile", "README.md"):
        write(tmp_path, path, path)
    commit(tmp_path, "what is built")
    write(tmp_path, "releases/1.json", "{}")
    commit(tmp_path, "a release")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", message)


def test_the_commit_is_the_last_one_of_what_is_built(clone: Path) -> None:
    """So a release that is committed is not out of date by that."""
    source = read_source(clone)
    assert source.commit == git(clone, "rev-parse", "HEAD~1").strip()
    assert not source.dirty
    check_committed(source, clone)
    write(clone, "runtime/server.py", "changed")
    commit(clone, "the server")
    assert read_source(clone).commit == git(clone, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("path", ["runtime/server.py", "images/new.Dockerfile"])
def test_what_is_not_committed_is_named_and_refused(clone: Path, path: str) -> None:
    write(clone, path, "changed")
    write(clone, "docs/note.md", "of no matter")
    assert changes(clone) == [path]
    source = read_source(clone)
    assert source.dirty
    with pytest.raises(CommandError, match=f"changes that no commit has:\n- {path}$") as refused:
        check_committed(source, clone)
    assert refused.value.code is ExitCode.USAGE
    assert "--allow-dirty" in (refused.value.hint or "")


def test_a_build_here_gets_what_git_knows_as_it_lies_there(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write(clone, ".gitignore", "*.log\n")
    write(clone, "runtime/server.py", "changed")
    write(clone, "runtime/run.log", "ignored")
    (clone / "README.md").unlink()
    target = tmp_path_factory.mktemp("source")
    stage(clone, target)
    assert input_files(clone) == ["images/cpu.Dockerfile", "runtime/server.py"]
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == input_files(clone)
    assert (target / "runtime" / "server.py").read_text() == "changed"


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("steelyard/build_programs/image.py", True),
        ("steelyard/models/pull.py", True),
        ("base/steelyard_base/strict.py", True),
        ("steelyard/commands/up.py", False),
        ("steelyard/terminal/console.py", False),
        ("constructs/steelyard_constructs/endpoint.py", False),
    ],
)
def test_a_change_of_the_command_line_is_no_new_source(clone: Path, path: str, counts: bool) -> None:
    """Otherwise a typo in a command would rename, rebuild and scan again every image."""
    write(clone, path, "before")
    commit(clone, "before")
    before = read_checkout(clone)
    write(clone, path, "after")
    commit(clone, "after")
    after = read_checkout(clone)
    assert (after.asset != before.asset, after.source != before.source) == (counts, counts)
    assert (path in input_files(clone)) is counts


def test_the_programs_of_the_builds_run_from_their_source_alone(tmp_path: Path) -> None:
    """The archive that a build starts from has all that they import, and they import no command."""
    stage(source.ROOT, tmp_path)
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from steelyard.build_programs import image, model\n"
        "from steelyard.models.catalogue import catalogue\n"
        "assert catalogue() and image.__file__.startswith(sys.argv[1])\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules if name.startswith('steelyard')}))"
    )
    folders = [str(tmp_path / name) for name in (".", "base", "runtime")]
    command = [sys.executable, "-I", "-c", script, *folders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["steelyard", "steelyard_base", "steelyard_runtime"]


def test_a_checkout_is_its_commit_and_what_lies_there(clone: Path) -> None:
    first = read_checkout(clone)
    assert (first.source, first.asset) == (read_source(clone), asset_hash(clone))
    write(clone, "docs/note.md", "of no matter")
    assert read_checkout(clone) == first
    write(clone, "runtime/server.py", "changed")
    with pytest.raises(CommandError, match=r"changes that no commit has:\n- runtime/server\.py$"):
        read_checkout(clone)
    changed = read_checkout(clone, allow_dirty=True)
    assert changed.source == first.source.model_copy(update={"dirty": True})
    assert changed.asset != first.asset
    commit(clone, "the server")
    committed = read_checkout(clone)
    assert committed.asset == changed.asset
    assert committed.source.commit != first.source.commit


def test_a_checkout_that_changes_while_it_is_read_is_refused(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(root: Path) -> str:
        write(root, "runtime/server.py", "changed")
        return asset_hash(root)

    monkeypatch.setattr(source, "asset_hash", hashed)
    commit_now = read_source(clone).commit[:12]
    with pytest.raises(CommandError, match=f"was commit {commit_now}, and is commit {commit_now} with changes"):
        read_checkout(clone)


def test_what_is_no_clone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="git cannot say from which commit this is built"):
        read_source(tmp_path)
    git(tmp_path, "init", "--quiet")
    with pytest.raises(CommandError, match=r"git cannot say|no commit in"):
        read_source(tmp_path)
