"""What validation may do with a body is bounded by counts: faults that are gathered, calls, bytes of the answer.

pydantic validates and reports in one call that no other thread can interrupt. How many values a body has is bounded
before (``max_json_structure``). Here: many wrong values are not as many faults, work is in proportion to the values,
and the answer is short. The bodies follow from each contract's schema: every array and object in it, one after another,
full of what it must not hold, so that a new field is tried too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from steelyard_runtime.contracts import validation
from steelyard_runtime.contracts.contract import AnyContract
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.openai_text import MAX_LOGIT_BIASES
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.errors import Problem

MOST_FAULTS = 2 * MAX_LOGIT_BIASES
"""A token and its bias may both be wrong."""
MOST_CALLS_PER_VALUE = 40
MOST_ANSWER_BYTES = 64 << 10
WRONG: tuple[Any, ...] = (0, "a", None, [], {}, {"x": 1}, -1.5, True)

Schema = dict[str, Any]


def alternatives(schema: Schema, defs: Schema) -> list[Schema]:
    """The schemas of which a value has to be one, without references and unions."""
    if "$ref" in schema:
        return alternatives(defs[schema["$ref"].rsplit("/", 1)[1]], defs)
    union = schema.get("anyOf") or schema.get("oneOf")
    return [found for each in union for found in alternatives(each, defs)] if union else [schema]


def least(schema: Schema, defs: Schema) -> Any:
    """A small value of a schema, right or nearly so."""
    schema = alternatives(schema, defs)[0]
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("type") == "object":
        entries = schema.get("additionalProperties")
        value = {name: least(schema["properties"][name], defs) for name in schema.get("required", ())}
        return value or ({"k": least(entries, defs)} if isinstance(entries, dict) else {})
    if schema.get("type") == "array":
        return [least(schema.get("items", {}), defs)] * schema.get("minItems", 1)
    simple = {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 0.5), "boolean": False, "null": None}
    return simple.get(schema.get("type", ""), "a")


def crowded(schema: Schema, defs: Schema, count: int, above: tuple[str, ...] = ()) -> Iterator[Any]:
    """Values of a schema in which one array or object has ``count`` entries, most of them wrong."""
    for each in alternatives(schema, defs):
        key = json.dumps(each, sort_keys=True)
        if key in above:
            continue
        inside = (*above, key)
        if each.get("type") == "object":
            base, entries = least(each, defs), each.get("additionalProperties")
            yield base | {f"x{number}": number for number in range(count)}
            for name, field in each.get("properties", {}).items():
                yield from (base | {name: value} for value in crowded(field, defs, count, inside))
            if isinstance(entries, dict):
                for value in (*WRONG, least(entries, defs)):
                    yield {f"k{number}": value for number in range(count)}
                yield from ({"k": value} for value in crowded(entries, defs, count, inside))
        elif each.get("type") == "array":
            item = least(each.get("items", {}), defs)
            more = [item | {"x": 1}] if isinstance(item, dict) else []
            yield from ([value] * count for value in (*WRONG, item, *more))
            yield from ([value] for value in crowded(each.get("items", {}), defs, count, inside))


def bodies(contract: AnyContract, count: int) -> Iterator[Any]:
    schema = contract.request.model_json_schema()
    return crowded(schema, schema.get("$defs", {}), count)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_of_many_wrong_values_few_are_faults_and_the_answer_is_short(
    contract: AnyContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered, render = [0], validation.from_pydantic

    def counted(error: validation.ValidationError, **more: Any) -> Problem:
        gathered.append(error.error_count())
        return render(error, **more)

    monkeypatch.setattr(validation, "from_pydantic", counted)
    refused = 0
    for body in chain(bodies(contract, MAX_LOGIT_BIASES), bodies(contract, 5 * MAX_LOGIT_BIASES)):
        try:
            contract.decode(body, Limits())
        except Problem as problem:
            refused += 1
            _, answer = contract.errors.render(problem)
            assert len(json.dumps(answer)) <= MOST_ANSWER_BYTES, json.dumps(body)[:200]
        assert gathered[-1] <= MOST_FAULTS, json.dumps(body)[:200]
    assert refused > len(WRONG)
    assert len(gathered) > len(WRONG) / 2, "few bodies came as far as pydantic"


def calls(contract: AnyContract, body: Any) -> int:
    """How many functions are called for a body, up to the rendered answer if it is refused."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        if (problem := refused_with(contract, body)) is not None:
            contract.errors.render(problem)
    finally:
        sys.setprofile(None)
    return count


def refused_with(contract: AnyContract, body: Any) -> Problem | None:
    try:
        contract.decode(body, Limits())
    except Problem as problem:
        return problem
    return None


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_work_is_in_proportion_to_the_values(contract: AnyContract) -> None:
    small, large = 200, 800
    for few, many in zip(bodies(contract, small), bodies(contract, large), strict=True):
        less, more = calls(contract, few), calls(contract, many)
        shown = json.dumps(few)[:200]
        assert more <= 1.5 * large / small * less, (less, more, shown)
        assert more <= MOST_CALLS_PER_VALUE * json.dumps(many).count(",") + 5000, (more, shown)
