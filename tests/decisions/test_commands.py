"""A decision from the first contract to an accepted head, with a real model file, through the commands."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import tiny_models
from steelyard import cli
from steelyard.decisions import fitting, metrics, tuning
from steelyard.decisions.features import _Kept
from steelyard.decisions.folder import read_contract
from steelyard.decisions.workflow import Baseline, regressions
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.decisions.contract import parse_contract
from steelyard_runtime.decisions.head import Interval, load_head
from steelyard_runtime.scoring.wordings import WORDINGS

OPTIONS = {"lost": "A parcel that cannot be found", "late": "A delivery after the promised day"}
TEXTS = {
    "lost": "parcel {} vanished and nobody knows where",
    "late": "delivery {} is slow and came after the promised day",
    "none_of_these": "lovely weather {} today isn't it",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_models.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(metrics, "RESAMPLES", 50)

    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def made(run, *, each=6):
    code, out, _ = run("decision", "new", "parcel-status", *(f"--option={key}={text}" for key, text in OPTIONS.items()))
    assert (code, out) == (ExitCode.OK, "decisions/parcel-status\n")
    lines = [
        json.dumps({"state": text.format(number), "label": label, "kind": "easy" if number else None})
        for label, text in TEXTS.items()
        for number in range(each)
    ]
    return lines


def test_an_empty_folder_is_filled_and_no_other(run, tmp_path):
    folder = tmp_path / "decisions" / "parcel-status"
    folder.mkdir(parents=True)
    made(run)
    assert (folder / "contract.toml").is_file()
    code, _, errors = run("decision", "new", "parcel-status")
    assert (code, "exists already" in errors) == (ExitCode.USAGE, True)


def fit(run, model, *more):
    return run("decision", "fit", "parcel-status", "--model", model, "--threads=1", "--context-tokens=256", *more)


def measure(run, model, *more):
    return run("decision", "test", "parcel-status", "--model", model, "--threads=1", "--context-tokens=256", *more)


def tune(run, model, *more):
    return run("decision", "tune", "parcel-status", "--model", model, "--threads=1", "--context-tokens=256", *more)


def curve(run, model, *more):
    return run("decision", "curve", "parcel-status", "--model", model, "--threads=1", "--context-tokens=256", *more)


def test_a_decision_from_its_contract_to_an_accepted_head(run, model, tmp_path):
    folder, lines = tmp_path / "decisions" / "parcel-status", made(run)
    code, out, _ = run("decision", "lint", "parcel-status")
    assert code == ExitCode.FAILED
    assert "'lost' has 0 labelled cases" in out
    code, _, err = fit(run, model)
    assert (code, "has errors" in err) == (ExitCode.USAGE, True)

    (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")
    code, out, err = fit(run, model)
    assert code == ExitCode.OK, err
    assert "bag of words, no model" in out
    assert "No threshold is proven" in out
    assert "The next 50 labels are worth about" in out
    assert "the right option is one of those likelier than" in out
    assert "20 states evaluated" in err
    head, contract = load_head(folder), read_contract(folder)
    assert head.description.bound.question_sha256 == contract.question_sha256
    assert head.description.measured.cases == 18

    assert measure(run, model, "--accept")[0] == ExitCode.OK
    code, out, err = measure(run, model, "--json")
    assert (code, "0 states evaluated" in err) == (ExitCode.OK, True)
    assert json.loads(out)["measured"] == head.description.measured.model_dump(mode="json")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = tune(run, model, "--tokens=40", "--json")
    assert code == ExitCode.OK, err
    told = json.loads(out)
    assert {name: each["measured"] is not None for name, each in told["wordings"].items()} == {
        name: each["tokens"] <= 40 or name == contract.readout.wording for name, each in told["wordings"].items()
    }
    assert set(told["wordings"]) == set(WORDINGS)
    own = told["wordings"][contract.readout.wording]
    assert (own["gain"], own["measured"]) == (None, head.description.measured.model_dump(mode="json"))
    assert (told["winner"], "nothing is written" in err) == (None, True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    code, out, err = curve(run, model, f"--svg={tmp_path / 'curve.svg'}", "--json")
    assert code == ExitCode.OK, err
    assert json.loads(out)["labels"] == [2, 4, 7, 14]
    assert "parcel-status@1" in (tmp_path / "curve.svg").read_text()

    (folder / "cases.jsonl").write_text("\n".join([*lines, lines[0].replace(" 0 ", " one more ")]) + "\n")
    code, _, err = measure(run, model)
    assert code == ExitCode.FAILED
    assert "fitted with other cases" in err
    assert "1 states evaluated" in err
    assert sorted(each.name for each in folder.iterdir()) == [
        *("baseline.json", "cases.jsonl", "contract.toml", "head.json", "head.safetensors"),
    ]
    code, out, _ = run("decision", "show", "parcel-status", "--json")
    assert json.loads(out)["up_to_date"] is False


def test_a_better_wording_makes_the_next_version_and_its_head(run, model, tmp_path, monkeypatch):
    folder, lines = tmp_path / "decisions" / "parcel-status", made(run)
    (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "contract.toml"
    path.write_text("# A comment.\n" + path.read_text())
    monkeypatch.setattr(tuning.metrics, "paired_loss", lambda *_args, **_more: Interval(value=0.2, low=0.1, high=0.3))
    code, out, err = tune(run, model, "--tokens=1000")
    assert code == ExitCode.OK, err
    assert "the contract's own" in out
    assert "+0.200 (+0.100 to +0.300)" in out
    changed = read_contract(folder)
    assert changed.version == 2
    assert changed.readout.wording != "one-word-1"
    assert path.read_text().startswith("# A comment.\n")
    assert f"parcel-status@2 with {changed.readout.wording}" in err
    assert load_head(folder).description.bound.question_sha256 == changed.question_sha256


@pytest.mark.parametrize(
    "text",
    [
        'version = 1\nreadout = {wording = "one-word-1"}\n',  # written anew
        "version = 1\n[readout] # how\nwords = false\n",
        'version   = 1\n[readout]\nwording = "one-word-1" # ours\n',
        "version = 1\n",
    ],
)
def test_the_next_version_differs_in_version_and_wording_only(text):
    said = 'name = "a"\ntype = "yesno"\nquestion = "Q?"\noptions = [{id = "yes"}, {id = "no"}]\n' + text
    contract = parse_contract(said)
    written, changed = tuning.next_version(said, contract, "chatml-1")
    assert parse_contract(written) == changed
    assert (changed.version, changed.readout.wording) == (2, "chatml-1")
    assert tuning.workflow.with_wording(changed, "one-word-1").model_copy(update={"version": 1}) == contract


def baseline(accuracy, log_loss):
    """Figures with intervals of a tenth on both sides."""
    around = [Interval(value=each, low=each - 0.1, high=each + 0.1) for each in (accuracy, log_loss)]
    hashes = dict.fromkeys(("question_sha256", "model_sha256", "cases_sha256"), "0")
    return Baseline(contract="a@1", accuracy=around[0], log_loss=around[1], **hashes)


@pytest.mark.parametrize(
    ("now", "told"),
    [((0.81, 0.59), []), ((0.79, 0.5), ["accuracy is 0.790"]), ((0.95, 0.61), ["log loss is 0.610"])],
)
def test_figures_outside_the_accepted_intervals_are_worse(now, told):
    found = regressions(baseline(*now), baseline(0.9, 0.5))
    assert len(found) == len(told)
    assert all(each.startswith(start) for each, start in zip(found, told, strict=True))


def test_an_interrupted_write_of_hidden_states_is_cut_off(tmp_path):
    states, hidden = ["a", "b"], [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    kept = _Kept(tmp_path / "kept", size=2)
    with kept.opened():
        kept.add(states, hidden)
    file = tmp_path / "kept" / "states.bin"
    file.write_bytes(file.read_bytes()[:-5])
    again = _Kept(tmp_path / "kept", size=2)
    with again.opened():
        assert ("a" in again, "b" in again) == (True, False)
        again.add(["b"], hidden[1:])
    third = _Kept(tmp_path / "kept", size=2)
    with third.opened():
        assert [list(third[state]) for state in states] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            '{"state": "a", "label": "lose"}',
            "line 1: the label 'lose' is none of the options lost, late, none_of_these",
        ),
        ('{"state": "a"}', "label: Field required"),
        ('{"state": "a", "label": "lost", "labels": 1}', "labels: there is no such field"),
        ('{"state": " ", "label": "lost"}', "the state is blank"),
        ('{"state": "a", "state": "b", "label": "lost"}', "appears twice"),
        ("{", "is not JSON"),
    ],
)
def test_a_line_that_is_no_case_is_refused(run, tmp_path, line, told):
    made(run)
    (tmp_path / "decisions" / "parcel-status" / "cases.jsonl").write_text(line + "\n")
    code, _, err = run("decision", "lint", "parcel-status")
    assert code == ExitCode.USAGE
    assert told in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "parcels"], "there is no decision 'parcels'"),
        (["new", "../x"], "is no name of a decision"),
        (["new", "x", "--type", "maybe"], "--type is 'maybe'"),
        (["new", "x", "--type", "yesno", "--option", "ja"], "at least 2"),
        (["new", "x", "--type", "score", "--option", "high"], "is no number"),
        (["new", "x", "--option", "a", "--option", "a"], "appears more than once"),
    ],
)
def test_wrong_command_lines_are_refused(run, arguments, told):
    code, _, err = run("decision", *arguments)
    assert code == ExitCode.USAGE
    assert told in err


def test_a_folder_of_another_name_and_a_second_new_are_refused(run, tmp_path):
    made(run)
    code, _, err = run("decision", "new", "parcel-status")
    assert (code, "exists already" in err) == (ExitCode.USAGE, True)
    shutil.copytree(tmp_path / "decisions" / "parcel-status", tmp_path / "decisions" / "other")
    code, _, err = run("decision", "show", "other")
    assert (code, "Call the folder parcel-status" in err) == (ExitCode.USAGE, True)


def test_the_state_that_is_too_long_is_named(run, model, tmp_path):
    lines = made(run)
    lines.insert(7, json.dumps({"state": "endless " * 2000, "label": "lost"}))
    (tmp_path / "decisions" / "parcel-status" / "cases.jsonl").write_text("\n".join(lines) + "\n")
    code, _, err = fit(run, model)
    assert code == ExitCode.USAGE
    assert "the state that begins with 'endless endless" in err
    assert "256 are allowed" in " ".join(err.split())
    assert "--context-tokens" in err
