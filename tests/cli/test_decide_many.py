"""Many states from the command line, on a real server: in order, in few requests, continued, and failing row by row."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from live_server import eventually
from steelyard import cli
from steelyard_base.exit_codes import ExitCode

QUESTION = ["--question", "Which team?", "--option", "billing=Charges", "--option", "delivery=Parcels"]
DECISION = {"question": "Which team?", "options": [{"id": "billing"}, {"id": "delivery"}]}


@pytest.fixture
def run(capsysbinary, server, monkeypatch):
    """Run ``steelyard decide`` against the server; returns exit code, standard output and standard error."""
    monkeypatch.setenv("STEELYARD_URL", server.url)

    def run(*arguments):
        code = cli.run(["decide", *map(str, arguments)])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return run


def requests(server):
    return [line for line in list(server.lines) if line["event"] == "request" and line["route"] == "/invocations"]


def test_each_row_is_answered_as_if_it_were_alone(run, tmp_path):
    states = ["I was billed twice.", "The parcel is late.", {"text": "Hello", "tier": 1}]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{n}", "state": state}) + "\n" for n, state in enumerate(states)))
    code, out, err = run("--states", path, *QUESTION, "--concurrency", "3", "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == ["r0", "r1", "r2"]
    for row, state in zip(rows, states, strict=True):
        one = tmp_path / "one.json"
        one.write_text(json.dumps(state))
        alone = json.loads(run("--state-file", one, *QUESTION, "--json")[1])
        assert row["result"]["option_logits"] == alone["option_logits"]
        assert row["probabilities"] == dict(zip(alone["option_ids"], alone["probabilities"], strict=True))
        assert (row["choice"], row["decision"], row["error"]) == (alone["choice"], "decision", None)


@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.json", "s.txt"])
def test_every_format_gives_the_same(run, tmp_path, name):
    states = ["I was billed, twice.", 'She said "late".']
    path = tmp_path / name
    with path.open("w", newline="") as file:
        if path.suffix == ".json":
            json.dump(states, file)
        elif path.suffix == ".txt":
            file.write("\r\n".join(states))
        else:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([["state"], *([state] for state in states)])
    code, out, err = run("--states", path, *QUESTION)
    assert code == 0, err
    lines = tmp_path / "s.jsonl"
    lines.write_text("".join(json.dumps(state) + "\n" for state in states))
    assert out == run("--states", lines, *QUESTION)[1]


def test_equal_states_and_all_their_decisions_are_one_request(run, tmp_path, server):
    document = tmp_path / "d.json"
    document.write_text(json.dumps([DECISION | {"id": "team"}, DECISION | {"id": "other", "question": "Really?"}]))
    path = tmp_path / "s.txt"
    path.write_text("same\nsame\nother\nsame\n")
    before = len(requests(server))
    code, out, err = run(document, "--states", path, "--format", "csv")
    assert code == 0, err
    assert eventually(lambda: len(requests(server)) == before + 2)
    rows = list(csv.DictReader(out.splitlines()))
    expected = [(str(n), decision) for n in range(1, 5) for decision in ("team", "other")]
    assert [(row["id"], row["decision"]) for row in rows] == expected
    assert rows[0]["p.billing"] == rows[2]["p.billing"] == rows[6]["p.billing"]


def test_a_list_of_decisions_about_different_states_is_asked(run, tmp_path):
    """Not: all decisions of one request share one state."""
    document = tmp_path / "d.json"
    states = ["A", "B", "A"]
    document.write_text(json.dumps([DECISION | {"id": str(n), "state": state} for n, state in enumerate(states)]))
    code, out, err = run(document, "--json")
    assert code == 0, err
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["0", "1", "2"]
    code, out, err = run(document)
    assert code == 0, err
    assert out.count("tokens evaluated") == 3
    code, out, err = run(document, "--out", tmp_path / "o.csv")
    assert (code, out) == (0, ""), err
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 4


def test_a_layout_in_a_file_and_as_a_flag_is_that_of_a_request(run, tmp_path):
    def hashes(document, *flags):
        path = tmp_path / "d.json"
        path.write_text(json.dumps(document))
        code, out, err = run(path, "--json", *flags)
        assert code == 0, err
        return [json.loads(line)["prompt_sha256"] for line in out.splitlines()]

    one = DECISION | {"state": "A"}
    layouts = ("state-first", "options-first")
    (state_first,), (options_first,) = (hashes({"decision": one | {"id": "d"}, "layout": each}) for each in layouts)
    assert state_first != options_first
    assert hashes(one | {"layout": "options-first"}) == [options_first]
    assert hashes(one, "--layout", "options-first") == [options_first]
    assert hashes(one | {"layout": "state-first"}, "--layout", "options-first") == [options_first]
    assert hashes([one | {"layout": "options-first"}, one | {"layout": "state-first"}]) == [options_first, state_first]


def test_a_readout_in_a_file_and_as_a_flag_is_that_of_a_request(run, tmp_path):
    def readouts(document, *flags):
        path = tmp_path / "d.json"
        path.write_text(json.dumps(document))
        code, out, err = run(path, "--json", *flags)
        assert code == 0, err
        return [json.loads(line)["readout"] for line in out.splitlines()]

    one = DECISION | {"state": "A"}
    assert readouts({"decision": one | {"id": "d"}, "readout": "letters-raw"}) == ["letters-raw"]
    assert readouts(one | {"readout": "options-as-cases"}) == ["options-as-cases"]
    assert readouts(one | {"readout": "options-as-cases"}, "--readout", "letters-raw") == ["letters-raw"]
    both = [one | {"readout": "letters-raw"}, one | {"readout": "options-as-cases"}]
    assert readouts(both) == ["letters-raw", "options-as-cases"]
    code, _, err = run(tmp_path / "d.json", "--readout", "tea-leaves")
    assert code != 0
    assert "letters-raw" in err


def test_a_refused_row_says_why_and_the_others_are_answered(run, tmp_path):
    path = tmp_path / "s.jsonl"
    states = ["fine", "x " * 100_000, "fine too"]
    path.write_text("".join(json.dumps(state) + "\n" for state in states))
    code, out, err = run("--states", path, *QUESTION)
    assert code == ExitCode.PARTIAL
    assert "1 of 3 rows were not answered" in err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert "the server refused (" in rows[1]["error"]
    document = tmp_path / "d.json"
    document.write_text(json.dumps([DECISION | {"state": "A"}, DECISION | {"state": "B", "options": [{"id": "one"}]}]))
    code, out, err = run(document, "--json")
    assert (code, len(out.splitlines())) == (ExitCode.PARTIAL, 1)
    assert "2 to 255" in err


def test_nothing_is_sent_when_a_line_is_wrong(run, tmp_path, server):
    path = tmp_path / "s.jsonl"
    path.write_text('"fine"\n"fine"\n{\n')
    before = len(requests(server))
    code, out, err = run("--states", path, *QUESTION, "--out", tmp_path / "o.jsonl")
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"line 3 of {path} is not JSON" in err
    assert len(requests(server)) == before
    assert not (tmp_path / "o.jsonl").exists()


def test_a_run_that_was_killed_is_continued(server, tmp_path):
    path, out = tmp_path / "s.txt", tmp_path / "o.jsonl"
    path.write_text("".join(f"state {n}\n" for n in range(40)))
    words = ["decide", "--states", path, *QUESTION, "--out", out, "--url", server.url]
    command = [sys.executable, "-m", "steelyard", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 3, within_s=120)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "continue with --resume" in err
    assert "Traceback" not in err
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    assert 3 <= kept.count(b"\n") < 40
    out.write_bytes(kept + b'{"id": ')
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(kept)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(1, 41))


def test_a_server_that_is_gone_ends_the_run(run, tmp_path, monkeypatch):
    path = tmp_path / "s.txt"
    path.write_text("a\nb\n")
    code, out, err = run("--states", path, *QUESTION, "--url", "http://127.0.0.1:9", "--out", tmp_path / "o.jsonl")
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert "0 rows were written" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume"], "name it with --out"),
        (["--state-field", "x"], "--state-field: for --states"),
        (["--states", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["--states", "/nowhere.xyz"], "is not known by its suffix"),
        (["--states", "/etc/hosts", "--states-format", "txt", "--state", "s"], "leave --state and --state-file out"),
        (["-", "--states", "-"], "cannot both come from standard input"),
        (["--states", "-", "--state-file", "-"], "cannot both come from standard input"),
        (["--states", "-", "--out", "o.xyz"], "the format of o.xyz is not known"),
        (["--states", "-", "--format", "csv", "--json"], "for which CSV has no place"),
        (["--states", "-", "--out", "/nowhere/o.csv"], "cannot write /nowhere/o.csv"),
        (["--states", "-", "--layout", "sideways"], "--layout"),
        (["--states", "-", "--concurrency", "0"], "--concurrency"),
        (["--states", "-", "--concurrency", "65"], "--concurrency"),
    ],
)
def test_flags_that_do_not_fit_are_refused(run, words, said):
    code, out, err = run(*words, *QUESTION)
    assert (code, out) == (ExitCode.USAGE, "")
    assert said in " ".join(err.split())


def test_the_input_is_not_overwritten(run, tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('"a"\n')
    code, _, err = run("--states", path, *QUESTION, "--out", path, "--resume")
    assert (code, path.read_text()) == (ExitCode.USAGE, '"a"\n')
    assert "are the same file" in err


def test_rows_can_be_piped_into_a_command_that_ends(server, tmp_path):
    path = tmp_path / "s.txt"
    path.write_text("a\nb\nc\nd\n")
    script = f"{sys.executable} -m steelyard decide --states {path} --url {server.url} "
    script += '--question Q --option a --option b | head -1; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=os.environ)
    assert json.loads(done.stdout)["id"] == 1
    assert "Traceback" not in done.stderr


def test_what_cannot_be_sent_as_text_is_refused(run):
    code, _, err = run("--state", "a\udcff", *QUESTION)
    assert code == ExitCode.USAGE
    assert "U+DCFF" in err
