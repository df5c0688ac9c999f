"""Labelled cases of every form are the same cases, and what is wrong is named with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steelyard.decisions.folder import Case
from steelyard.evaluation import labelled
from steelyard.evaluation.labelled import Columns, as_lines, read_labelled, require_options
from steelyard_base.exit_codes import CommandError
from steelyard_runtime.contracts.systemone import CHOICE_INSTRUCTIONS

CASES = (
    Case(state="I was billed, twice.", label="billing", kind="hard", id="a"),
    Case(state='She said "late".\nTwice.', label="delivery", id="b", same_as="a"),
)


def read(folder: Path, name: str, body: str | bytes, **given: object) -> labelled.Labelled:
    path = folder / name
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return read_labelled(path, **given)


def told(folder: Path, name: str, body: str | bytes, **given: object) -> str:
    with pytest.raises(CommandError) as raised:
        read(folder, name, body, **given)
    return f"{raised.value.message} {raised.value.hint or ''}"


TABLE = (
    'id,text,label,kind,same_as\na,"I was billed, twice.",billing,hard,\nb,"She said ""late"".\nTwice.",delivery,,a\n'
)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_is_cases(tmp_path: Path, mark: str, end: str) -> None:
    table = TABLE.replace('late"".\n', 'late"".@').replace("\n", end).replace("@", "\n")
    found = read(tmp_path, "c.csv", mark + table)
    assert found.cases == CASES
    assert found.lines == (2, 3)


def test_lines_are_cases_and_cases_are_lines(tmp_path: Path) -> None:
    found = read(tmp_path, "c.jsonl", as_lines(CASES))
    assert found.cases == CASES
    assert as_lines(found.cases) == as_lines(CASES)


def test_columns_have_the_names_that_people_give_them(tmp_path: Path) -> None:
    found = read(
        tmp_path, "c.csv", "subject,body,team\nHi,late,7\n", columns=Columns(state=("subject", "body"), label="team")
    )
    assert found.cases == (Case(state={"subject": "Hi", "body": "late"}, label="7"),)
    assert "fields are: 'subject', 'body'" in told(tmp_path, "c.csv", "subject,body\nHi,late\n")


QUESTIONS = {
    "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "after the day"}},
    "team": {"type": "choice", "instructions": "Who?", "criteria": {"a": "A team", "b": None}},
    "level": {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad"]},
}


@pytest.mark.parametrize(
    ("question", "answer", "label", "options"),
    [
        ("late", True, "yes", [{"id": "yes", "description": "after the day"}, {"id": "no"}]),
        ("late", False, "no", [{"id": "yes", "description": "after the day"}, {"id": "no"}]),
        ("team", "b", "b", [{"id": "a", "description": "A team"}, {"id": "b"}]),
        ("level", 1, "1", [{"id": "0", "description": "fine"}, {"id": "1", "description": "bad"}]),
    ],
)
def test_system_one_requests_have_labels_beside_them(
    tmp_path: Path, question: str, answer: object, label: str, options: list[dict[str, str]]
) -> None:
    rows = [{"state": "s", "questions": QUESTIONS, "labels": each} for each in ({question: answer}, {})]
    body = "\n".join(map(json.dumps, rows))
    found = read(tmp_path, "c.jsonl", body, question=question)
    assert (found.cases, found.unlabelled) == ((Case(state="s", label=label),), 1)
    assert found.decision == {"question": QUESTIONS[question]["instructions"], "options": options}
    assert "Choose one with --ask" in told(tmp_path, "c.jsonl", body)


def test_tasks_of_sys1bench_have_their_truth_inside(tmp_path: Path) -> None:
    options = [{"key": "x", "description": "An x"}, {"key": "y", "description": ""}]
    tasks = [
        {
            "task_id": f"t{n}",
            "state": "s",
            "questions": {"q": {"type": "choice", "criteria": options, "ground_truth": truth}},
        }
        for n, truth in enumerate(["y", None])
    ]
    found = read(tmp_path, "c.jsonl", "\n".join(map(json.dumps, tasks)))
    assert found.cases == (Case(state="s", label="y", id="t0"),)
    assert found.decision is not None
    assert found.decision["options"] == [{"id": "x", "description": "An x"}, {"id": "y"}]
    levels = [{"level": 1, "description": "low"}, {"level": 2, "description": "high"}]
    task = {"state": "s", "questions": {"q": {"type": "score", "criteria": levels, "ground_truth": 2}}}
    assert read(tmp_path, "c.jsonl", json.dumps(task)).cases[0].label == "2"


def test_two_questions_of_one_name_are_not_one_decision(tmp_path: Path) -> None:
    rows = [
        {"state": "s", "questions": {"q": {"type": "noul", "instructions": each}}, "labels": {"q": True}}
        for each in ("Late?", "Early?")
    ]
    assert "line 2" in told(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("c.csv", "text,label\na\0,x\n", "line 2 of"),
        ("c.csv", "text,label\ncaf\xe9,x\n".encode("latin-1"), "line 2 of"),
        ("c.csv", 'text,label\n"a,x\n', "line 2 of"),
        ("c.csv", "text,label\na,x,y\n", "line 2 of"),
        ("c.csv", "text,label\na,\n", "the label is ''"),
        ("c.csv", "text,label\n ,x\n", "the state is blank"),
        ("c.csv", "id,text,label\n1,a,x\n1,b,x\n", "the id '1' is that of line 2 too"),
        ("c.csv", "id,text,label,same_as\n1,a,x,2\n", "same_as is '2'"),
        ("c.csv", "text,label\n", "holds no labelled case"),
        ("c.jsonl", '{"state": "a", "label": true}', "the label is true"),
        ("c.jsonl", '{"state": NaN, "label": "x"}', "line 1 of"),
        ("c.jsonl", '{"state": "\\ud800", "label": "x"}', "half of a character"),
        ("c.jsonl", '"a"', "must have fields"),
        ("c.jsonl", '{"state": "a", "questions": {}, "labels": {}}', "it has no questions"),
        ("c.jsonl", '{"state": "a", "questions": {"q": {"type": "new"}}, "labels": {"q": 1}}', "no noul, choice or"),
        ("c.txt", "a\n", "no labels"),
        ("c", "a\n", "Say it: --format jsonl|csv|tsv|json"),
        ("c.csv", "text;label\na;x\n", "one column, 'text;label', divided by ';' Columns are divided by commas"),
        ("c.csv", "text,label\ra,x\r", "its lines end with a carriage return alone"),
        ("c.csv", "text,label,,\na,x,,\n", "column 3 has no name"),
        ("c.jsonl", '{"state": 1e999, "label": "x"}', "the number 1e999 is too large"),
        ("c.jsonl", f'{{"state": {"9" * 4301}, "label": "x"}}', "has 4301 digits; 4300 are allowed"),
        ("c.jsonl", f'{{"state": {"[" * 512}{"]" * 512}, "label": "x"}}', "more than 512 deep"),
        ("c.jsonl", f'{{"state": {"[" * 10_000}, "label": "x"}}', "more than 512 deep"),
        ("c.jsonl", '{"state": null, "label": "x"}', "the state is blank"),
        ("c.jsonl", '{"state": {}, "label": "x"}', "the state is blank"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, body: str | bytes, expected: str) -> None:
    assert expected in told(tmp_path, name, body)


@pytest.mark.parametrize(
    ("question", "answer", "options"),
    [
        ("team", ["b"], "a, b"),
        ("team", "c", "a, b"),
        ("late", 1, "yes, no"),
        ("level", 1.0, "0, 1"),
        ("level", 2, "0, 1"),
    ],
)
def test_an_answer_is_an_option_of_its_question(tmp_path: Path, question: str, answer: object, options: str) -> None:
    body = json.dumps({"state": "s", "questions": QUESTIONS, "labels": {question: answer}})
    said = f"the answer to '{question}' is {json.dumps(answer)}, and the options are {options}"
    assert said.replace('"c"', "'c'") in told(tmp_path, "c.jsonl", body, question=question)


def test_a_question_is_what_system_one_would_ask(tmp_path: Path) -> None:
    question = {"type": "choice", "criteria": {"a": {"is": "an A"}, "b": None}}
    found = read(tmp_path, "c.jsonl", json.dumps({"state": "s", "questions": {"q": question}, "labels": {"q": "a"}}))
    described = [{"id": "a", "description": '{"is":"an A"}'}, {"id": "b"}]
    assert found.decision == {"question": CHOICE_INSTRUCTIONS, "options": described}


def test_a_deep_state_is_a_line_again(tmp_path: Path) -> None:
    line = f'{{"state": {"[" * 511}1{"]" * 511}, "label": "x"}}\n'
    assert as_lines(read(tmp_path, "c.jsonl", line).cases) == line


def test_a_field_of_a_megabyte_is_read_whole(tmp_path: Path) -> None:
    long = "word " * 200_000
    assert read(tmp_path, "c.csv", f"text,label\n{long},x\n").cases[0].state == long


def test_there_is_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled, "MOST_CASES", 2)
    assert "it is case 3, and 2 are allowed" in told(tmp_path, "c.csv", "text,label\n" + "a,x\n" * 3)


def test_a_label_is_an_option(tmp_path: Path) -> None:
    found = read(tmp_path, "c.csv", "text,label\na,x\nb,z\n")
    with pytest.raises(CommandError, match=r"line 3 of .* the label 'z' is none of the options x, y"):
        require_options(found, ("x", "y"), origin=Path("c.csv"))
