"""Rows of output can be continued after any interruption, and nobody else's file is touched."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from steelyard.client.refusals import RequestError
from steelyard.rows.asking import Ask, Outcome
from steelyard.rows.writing import Csv, JsonLines, Output, appending, out_format, skip_written
from steelyard_base.exit_codes import CommandError, ExitCode

DECISIONS = [
    {"id": "q", "question": "?", "options": [{"id": "a"}, {"id": "b, c"}]},
    {"id": "r", "question": "?", "options": [{"id": "a"}, {"id": 'd"'}]},
]
ROWS = [Ask("x", "s", DECISIONS), Ask(2, "t", DECISIONS), Ask('z"\n', "u", DECISIONS)]
STYLES = [JsonLines, lambda: Csv(DECISIONS)]


def outcomes(row):
    result = {"id": "q", "choice": "a", "option_ids": ["a", "b, c"], "probabilities": [0.75, 0.25]}
    error = RequestError("two\nlines, of it", code=ExitCode.REFUSED)
    return [Outcome(row, DECISIONS[0], result), Outcome(row, DECISIONS[1], None, error)]


def written(path, style, rows=ROWS, *, resume=False):
    with appending(path, style, resume=resume) as (output, file):
        if file.read(1):
            file.seek(0)
            rows = skip_written(file, style, rows, origin=str(path))
        else:
            output.begin()
        count = 0
        for row in rows:
            output.write(outcomes(row))
            count += 1
    return count


def test_json_lines_hold_what_came(tmp_path):
    written(tmp_path / "o", JsonLines())
    lines = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    assert lines[:2] == [
        {"id": "x", "decision": "q", "choice": "a", "probabilities": {"a": 0.75, "b, c": 0.25}, "error": None},
        {"id": "x", "decision": "r", "choice": None, "probabilities": None, "error": "two\nlines, of it"},
    ]


def test_json_lines_hold_what_a_policy_says():
    result = {"choice": "a", "option_ids": ["a"], "probabilities": [1.0], "action": "review", "reason": "never"}
    asked = Ask("x", "s", [{"id": "route", "use": "route"}])
    line = json.loads(JsonLines().line(Outcome(asked, asked.decisions[0], result)))
    assert (line["choice"], line["action"], line["reason"]) == ("a", "review", "never")


def test_csv_holds_a_column_for_each_option(tmp_path):
    written(tmp_path / "o", Csv(DECISIONS))
    found = list(csv.DictReader(io.StringIO((tmp_path / "o").read_text())))
    assert found[0] == {
        "id": "x", "decision": "q", "choice": "a", "p.a": "0.75", "p.b, c": "0.25", 'p.d"': "", "error": ""
    }  # fmt: skip
    assert found[1]["error"] == "two lines, of it"
    assert [row["id"] for row in found] == ["x", "x", "2", "2", 'z" ', 'z" ']


@pytest.mark.parametrize("make", STYLES)
def test_a_run_cut_off_at_any_byte_is_continued(make, tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert written(whole, make()) == 3
    data = whole.read_bytes()
    for length in range(0, len(data), 3):
        part.write_bytes(data[:length])
        written(part, make(), resume=True)
        assert part.read_bytes() == data
    assert written(part, make(), resume=True) == 0


@pytest.mark.parametrize("make", STYLES)
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS[1:], "and the row of the input that belongs there would begin with"),
        ([Ask("x", "s", DECISIONS[1:]), *ROWS[1:]], "and the row of the input that belongs there would begin with"),
        (ROWS[:1], "has more rows than the input"),
    ],
)
def test_the_output_of_another_input_is_refused_and_stays(make, rows, said, tmp_path):
    written(tmp_path / "o", make())
    before = (tmp_path / "o").read_bytes()
    with pytest.raises(CommandError) as caught:
        written(tmp_path / "o", make(), rows, resume=True)
    assert said in caught.value.message
    assert (tmp_path / "o").read_bytes() == before


@pytest.mark.parametrize("make", STYLES)
@pytest.mark.parametrize("data", [b"my notes\n", b'{"a": 1}\n', b"a,b\n", b"1\n", b"\xff\xfe\n", b"no end"])
def test_a_file_of_somebody_else_is_refused_and_stays(make, data, tmp_path):
    path = tmp_path / "o"
    path.write_bytes(data)
    with pytest.raises(CommandError, match="is there already"):
        written(path, make())
    with pytest.raises(CommandError) as caught:
        written(path, make(), resume=True)
    assert caught.value.code is ExitCode.USAGE
    assert path.read_bytes() == data


def test_two_runs_do_not_write_one_file(tmp_path):
    with appending(tmp_path / "o", JsonLines(), resume=False), pytest.raises(CommandError, match="another run is"):
        written(tmp_path / "o", JsonLines(), resume=True)


def test_a_full_disk_is_told():
    with Path("/dev/full").open("wb", buffering=0) as file:
        output = Output(file, Csv(DECISIONS), name="/dev/full")
        with pytest.raises(CommandError, match="cannot write /dev/full: No space left on device"):
            output.begin()


def test_the_format_is_that_of_the_suffix(tmp_path):
    assert out_format(None, None) == "jsonl"
    assert out_format(tmp_path / "x.CSV", None) == "csv"
    assert out_format(tmp_path / "x.csv", "jsonl") == "jsonl"
    with pytest.raises(CommandError, match="is not known by its suffix"):
        out_format(tmp_path / "x.txt", None)


def test_csv_needs_declared_options():
    with pytest.raises(CommandError, match="declares no options"):
        Csv([{"id": "q", "use": "route@3"}])
