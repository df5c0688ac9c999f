"""JSON of a schema: what is promised is kept, what cannot be kept is refused, and no schema harms anybody else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import Delta, Done, Event, Failed, Finished, GenerationJob, Piece, Sampling
from steelyard_runtime.engine.json_output import LARGEST_SCHEMA, JsonOutput, JsonOutputError
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    model = tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "llama.gguf")
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512, chats=2, decode_timeout_s=20))
    yield engine
    engine.close(timeout_s=0)


@pytest.fixture(scope="module")
def output(engine: LlamaEngine) -> JsonOutput:
    return engine._json_output


def events_of(
    engine: LlamaEngine, *, prompt: list[int] | None = None, n: int = 1, max_tokens: int = 300, **sampling: Any
) -> list[Event]:
    """Everything that a generation says, up to its end."""
    events: list[Event] = []
    over = threading.Event()

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Done | Failed):
            over.set()

    tokens = tuple(prompt or engine.encode([Piece("json")], start=True))
    chosen = Sampling(max_tokens=max_tokens, **sampling)
    engine.submit_generation(
        GenerationJob(prompt=tokens, sampling=chosen, n=n, deadline=time.monotonic() + WAIT_S), note
    )
    assert over.wait(WAIT_S)
    return events


def texts(events: list[Event]) -> list[str]:
    """The text of each choice. Fails for a generation that failed."""
    assert not [event for event in events if isinstance(event, Failed)]
    found: dict[int, str] = {event.index: "" for event in events if isinstance(event, Finished)}
    for event in events:
        if isinstance(event, Delta):
            found[event.index] += event.text
    return [found[index] for index in sorted(found)]


KEEPS: dict[str, dict[str, Any]] = {
    "bounds of integers": {"type": "integer", "minimum": -3, "maximum": 12},
    "bounds of numbers": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
    "an object or null, with what it requires": {
        "type": ["object", "null"], "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": False,
    },
    "required and not described": {
        "type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"],
        "additionalProperties": {"type": "boolean"}, "maxProperties": 2,
    },
    "a type beside values": {"type": ["string", "null"], "enum": ["a", None, 1]},
    "what JSON has to escape": {"enum": ["c\\d", "a\nb", 'e"f', "\u0000", "\u2028", "é", "💩"]},
    "names that JSON has to escape": {
        "type": "object", "properties": {'a"\\\n': {"type": "boolean"}, "\u0000": {"const": "\u0000"}},
        "required": ['a"\\\n', "\u0000"], "additionalProperties": False,
    },
    "how many items": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4},
    "items of any kind of a few": {"type": "array", "items": {"enum": [None, "x", []]}, "minItems": 1, "maxItems": 2},
    "items in order": {
        "type": "array", "prefixItems": [{"const": "a"}, {"type": "boolean"}], "items": False, "minItems": 2,
    },
    "a pattern and a length": {"type": "string", "pattern": "^(ab|c)+$", "maxLength": 5},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "a format": {"type": "string", "format": "date"},
    "all of several": {
        "allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}}, {"required": ["a"]}],
        "maxProperties": 1,
    },
    "one of several, told apart by a value": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": "a"}}, "required": ["t"], "additionalProperties": False},
            {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"], "additionalProperties": False},
        ]
    },
    "a definition": {"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["y"]}}},
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPS)
def test_a_schema_is_kept_whatever_the_model_wants(engine: LlamaEngine, name: str) -> None:
    schema = KEEPS[name]
    grammar = engine.grammar(schema)
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for seed in range(4):
        (text,) = texts(events_of(engine, grammar=grammar, seed=seed))
        validator.validate(json.loads(text))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "distinct items": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "negation": ({"not": {"type": "string"}}, "not"),
    "conditions": ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "if"),
    "what an array contains": ({"type": "array", "contains": {"type": "string"}}, "contains"),
    "names of properties": ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    "what depends": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "alternatives that overlap": ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    "an unknown format": ({"type": "string", "format": "shoe size"}, "shoe size"),
    "an unknown type": ({"type": "text"}, "text"),
    "a place that is not there": ({"$ref": "#/nowhere"}, "nowhere"),
    "a schema from elsewhere": ({"$ref": "https://example.com/schema.json"}, "example.com"),
    "a pattern that is wrong": ({"type": "string", "pattern": "^[z-a]$"}, "character class"),
    "a character that is none": ({"type": "string", "pattern": "^[^\\x01-\\UFFFFFFFF]$"}, "Unicode"),
    "looking ahead": ({"type": "string", "pattern": "^(?=a)b$"}, "look-ahead"),
    "bounds that cross": ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength (5)"),
    "true for a number": ({"type": "string", "minLength": True}, "minLength"),
    "less than nothing": ({"type": "array", "minItems": -3}, "minItems"),
    "multiples of what is large": ({"type": "integer", "multipleOf": 2147483648}, "2147483648"),
    "multiples of what is fine": ({"type": "number", "multipleOf": 1.00003}, "100003"),
    "options for itself": ({"not": {}, "x-guidance": {"lenient": True}}, "not"),
    "nested without an end": ({"type": "string", "pattern": "(" * 2000 + ")" * 2000}, "regex"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_kept_is_refused_by_name(engine: LlamaEngine, name: str) -> None:
    schema, said = REFUSED[name]
    with pytest.raises(Problem) as raised:
        engine.grammar(schema)
    assert raised.value.kind is Kind.INVALID
    assert raised.value.param == "response_format.json_schema.schema"
    assert said in raised.value.message
    assert len(raised.value.message) < 500
    assert "\n" not in raised.value.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "a long string": {"type": "string", "maxLength": 20_000},
    "a longer string": {"type": "string", "minLength": 30_000_000},
    "the longest string": {"type": "string", "maxLength": 2_000_000_000},
    "many items": {"type": "array", "items": {"type": "string"}, "maxItems": 20_000},
    "many that may be nothing": {"type": "string", "pattern": "^(a?){1500}$"},
    "many of many that may be nothing": {"type": "string", "pattern": "^((a?){0,1000}){0,1000}$"},
    "many ways to read the same": {"type": "string", "pattern": "^(a|aa){1000}$"},
    "many values": {"enum": [f"value {number}" for number in range(20_000)]},
    "many properties": {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(2000)}},
    "many lengths": {"anyOf": [{"type": "string", "maxLength": number} for number in range(300)]},
    "a deep one": nested(60),
    "one without an end": {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}},
    "nothing but itself": {"$ref": "#"},
    "a limit inside": {
        "anyOf": [{"enum": [f"v{number}" for number in range(5000)]}, {"pattern": "(a{1,1000}){1,1000}b"}]
    },
}


def outcome(engine: LlamaEngine, schema: dict[str, Any]) -> str | Kind:
    """How two choices of 30 tokens end: "done", or the kind of problem."""
    try:
        last = events_of(engine, n=2, grammar=engine.grammar(schema), seed=1, max_tokens=30)[-1]
    except Problem as problem:
        return problem.kind
    if isinstance(last, Failed):
        assert isinstance(last.problem, Problem)
        return last.problem.kind
    return "done"


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_harms_the_engine_or_those_beside_it(engine: LlamaEngine, name: str) -> None:
    beside_before = texts(events_of(engine, temperature=0.0, max_tokens=8))
    # Twice as many choices as there are places: what ends with a problem gives its place back.
    for _ in range(2):
        assert outcome(engine, HOSTILE[name]) in ("done", Kind.INVALID)
    assert texts(events_of(engine, temperature=0.0, max_tokens=8)) == beside_before
    assert engine.health().ready
    assert engine.counters.active_generations == 0


def test_a_schema_that_is_too_much_on_the_way_ends_its_own_generation(engine: LlamaEngine) -> None:
    grammar = engine.grammar(HOSTILE["many ways to read the same"])
    failed = events_of(engine, n=2, grammar=grammar, seed=1)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.problem, Problem)
    assert failed.problem.kind is Kind.INVALID
    assert "too many" in failed.problem.message


@given(values=st.lists(st.text(max_size=12), min_size=1, max_size=4), seed=st.integers(0, 2**32))
@example(values=["\u0000", '"', "\\", "\ud7ff", "\U0010ffff"], seed=0)
def test_every_way_through_a_schema_ends_at_one_of_its_values(
    engine: LlamaEngine, output: JsonOutput, values: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    vocabulary = engine._vocabulary
    text = output.grammar({"enum": values}).begin()
    written = b""
    while True:
        token = chance.choice(text.allowed().nonzero()[0].tolist())
        text.add(token)
        if vocabulary.ends_generation(token):
            break
        written += vocabulary.token_bytes(token)
    assert json.loads(written) in values


def test_a_token_that_is_not_allowed_is_an_error_and_not_the_end(engine: LlamaEngine, output: JsonOutput) -> None:
    text = output.grammar({"const": 1}).begin()
    (wrong,) = engine.encode([Piece("x")], start=False)[:1]
    with pytest.raises(JsonOutputError):
        text.add(wrong)
    with pytest.raises(JsonOutputError):
        text.allowed()


WEARS_OUT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "string", "pattern": "^(a|aa){1000}$"}, "y": {"const": 1}},
    "additionalProperties": False,
}


def walk(engine: LlamaEngine, text: Any, written: str) -> None:
    """Add a text token by token, and ask at each place what may follow."""
    for token in engine.encode([Piece(written)], start=False):
        assert text.allowed()[token]
        text.add(token)


def test_a_text_that_came_to_its_limit_ends_no_other_of_the_same_schema(
    engine: LlamaEngine, output: JsonOutput
) -> None:
    beside = output.grammar(WEARS_OUT).begin()
    walk(engine, beside, '{"')
    with pytest.raises(JsonOutputError, match="too many"):
        walk(engine, output.grammar(WEARS_OUT).begin(), '{"x":"aaaaaaaa')
    walk(engine, beside, 'y":1}')
    walk(engine, output.grammar(WEARS_OUT).begin(), '{"y":1}')


def test_a_text_begins_while_a_schema_of_someone_else_is_compiled(output: JsonOutput) -> None:
    grammar = output.grammar({"const": 1})
    with output._lock:
        assert grammar.begin().allowed().any()


def test_a_schema_may_be_so_long_and_no_longer(output: JsonOutput) -> None:
    spare = len(json.dumps({"const": ""}))
    output.grammar({"const": "x" * (LARGEST_SCHEMA - spare)})
    with pytest.raises(JsonOutputError, match=f"{LARGEST_SCHEMA + 1} bytes as JSON and {LARGEST_SCHEMA} are allowed"):
        output.grammar({"const": "x" * (LARGEST_SCHEMA - spare + 1)})


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, -(2**63), 2**64, 10**400, -1e308, 1e16])
@pytest.mark.parametrize(
    "schema",
    [
        lambda number: {"const": number},
        lambda number: {"enum": [1, [number]]},
        lambda number: {"type": "integer", "minimum": number},
        lambda number: {"anyOf": [{"properties": {"a": {"maxLength": number}}}]},
    ],
)
def test_numbers_that_would_be_rounded_are_refused(output: JsonOutput, schema: Any, number: int) -> None:
    with pytest.raises(JsonOutputError, match="2\\*\\*53"):
        output.grammar(schema(number))


@pytest.mark.parametrize("number", [2**53, -(2**53), 0, -1, 10**15])
def test_other_integers_are_kept(engine: LlamaEngine, output: JsonOutput, number: int) -> None:
    walk(engine, output.grammar({"enum": [number]}).begin(), str(number))


def test_a_choice_that_ends_its_generation_ends_the_prompts_of_the_others(tmp_path: Path) -> None:
    """Where snapshots are not shared, every choice has its prompt evaluated, beside the tokens of those before it."""
    model = tiny_models.write("llama", tmp_path / "llama.gguf")
    settings = load_settings(
        model=str(model), threads=1, context_tokens=512, chats=3, chat_chunk_tokens=16, probe=False
    )
    engine = start_engine(settings)
    try:
        for tokens in range(8, 130, 8):
            grammar = engine.grammar(HOSTILE["many ways to read the same"])
            events = events_of(engine, n=3, prompt=list(range(300, 300 + tokens)), grammar=grammar, seed=1)
            assert isinstance(events[-1], Failed)
        assert texts(events_of(engine, n=3, temperature=0.0, max_tokens=4))
        assert engine.health().ready
        assert engine.counters.active_generations == 0
    finally:
        engine.close(timeout_s=0)


FULL = os.environ.get("STEELYARD_FUZZ") == "full"


@pytest.mark.timeout(3600 if FULL else 300)
def test_fuzz_random_schemas_do_nothing_that_none_may(tmp_path: Path) -> None:
    """In a process of its own, which a schema that gets through might end."""
    model = tiny_models.write("llama", tmp_path / "llama.gguf")
    first, count = (random.randrange(10**9), 100_000) if FULL else (0, 3000)
    script = str(Path(tiny_models.__file__).with_name("random_schemas.py"))
    ran = subprocess.run([sys.executable, script, str(model), str(first), str(count)], capture_output=True, text=True)
    assert ran.returncode == 0, f"seed {ran.stderr[-600:]}"
    counts = json.loads(ran.stdout)
    assert sum(counts.values()) == count
    assert min(counts.values()) > count / 50, counts


SEEDS = [0, 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**33 - 1, 2**40 - 1, 2**63 - 1]


def test_every_seed_repeats_itself_and_is_no_other(engine: LlamaEngine) -> None:
    def answers(seed: int) -> tuple[str, ...]:
        return tuple(texts(events_of(engine, n=2, seed=seed, temperature=2.0, max_tokens=20)))

    first = {seed: answers(seed) for seed in SEEDS}
    assert {seed: answers(seed) for seed in SEEDS} == first
    assert len({text for pair in first.values() for text in pair}) == 2 * len(SEEDS)


@pytest.mark.parametrize("temperature", [1e-6, 1e-7, 1e-39, 5e-324])
def test_the_coldest_temperatures_are_greedy(engine: LlamaEngine, temperature: float) -> None:
    greedy = texts(events_of(engine, temperature=0.0, max_tokens=12))
    assert texts(events_of(engine, temperature=temperature, max_tokens=12, seed=3)) == greedy


@pytest.mark.parametrize(("n", "max_tokens"), [(1, 1), (1, 5), (2, 1), (2, 6)])
def test_generated_tokens_are_those_that_the_caller_is_told(engine: LlamaEngine, n: int, max_tokens: int) -> None:
    before = engine.counters.generated_tokens
    done = events_of(engine, n=n, temperature=2.0, seed=5, max_tokens=max_tokens)[-1]
    assert isinstance(done, Done)
    assert done.generated_tokens > 0
    assert engine.counters.generated_tokens - before == done.generated_tokens
