"""Run as a process: random JSON schemas, and random texts of those that are taken. Prints what it did.

    python random_schemas.py MODEL FIRST COUNT

Written to end with a status other than 0 for what no schema may do: end the process, take too much memory or time, or
let a text come to its end that is not JSON.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

MEMORY = 4 << 30
SECONDS_EACH = 20
TOKENS = 60

INTEGERS = [0, 1, -1, 2, 7, 100, 255, 20_000, 2**31, 2**53, -(2**53), 2**63, -(2**63), 2**64, 10**400]
FLOATS = [0.0, -0.0, 0.1, 1e-7, 5e-324, 1e308, -1e308, 1.5, 2.5e15, 1e22, 123456.789, -0.5]
STRINGS = ["", "a", "a\nb", '"', "\\", "\u0000", "é", "💩", "x" * 200, "\u2028", "$ref", "__proto__"]
PATTERNS = [
    *(
        "^a+$",
        "(a?){50}",
        "((a?){0,100}){0,100}",
        "^(a|aa){50}$",
        r"[^\x00-\x1f]*",
        r"\d{3}-\d{4}",
        "^$",
        "",
        "a|",
        ".",
    ),
    *("(?i)abc", r"\p{L}+", r"\bfoo\b", "^.*$", "(a{1,1000}){1,1000}b", r"[\s\S]{0,30}", r"\u0041", "(", "[", "a{2,1}"),
    *(
        r"(?<n>a)\k<n>",
        "$^",
        "a^b",
        "\\",
        "x*?y+?",
        r"[a-\d]",
        "(?=a)",
        "(?!a)b",
        r"\Z",
        "💩+",
        "[💩-💪]",
        "^(?:a|b){3,}$",
    ),
]
FORMATS = [
    "date",
    "time",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "regex",
    "",
    "x",
]
TYPES: list[Any] = ["string", "integer", "number", "boolean", "null", "array", "object", ["string", "null"], [], "x"]
REFERENCES = ["#", "#/$defs/a", "#/properties/a", "#/nowhere", "a#b"]


def number(chance: random.Random) -> Any:
    """One of the numbers that are hard."""
    return chance.choice(INTEGERS if chance.random() < 0.6 else FLOATS)


def value(chance: random.Random, depth: int = 2) -> Any:
    """Any JSON value."""
    match chance.randrange(8):
        case 0 | 1:
            return number(chance)
        case 2:
            return chance.choice([True, False, None])
        case 3 if depth:
            return [value(chance, depth - 1) for _ in range(chance.randrange(3))]
        case 4 if depth:
            return {chance.choice(STRINGS): value(chance, depth - 1) for _ in range(chance.randrange(3))}
        case _:
            return chance.choice(STRINGS)


def keyword(chance: random.Random, name: str, depth: int) -> Any:
    """What stands behind a keyword: mostly of the right type."""
    if chance.random() < 0.05:
        return value(chance)
    match name:
        case "enum":
            return [value(chance) for _ in range(chance.randrange(4))]
        case "pattern":
            return chance.choice(PATTERNS)
        case "format":
            return chance.choice(FORMATS)
        case "$ref":
            return chance.choice(REFERENCES)
        case "required":
            return chance.sample(["a", "b", *STRINGS], chance.randrange(3))
        case "prefixItems" | "anyOf" | "oneOf" | "allOf":
            return [schema(chance, depth - 1) for _ in range(chance.randrange(4))]
        case "properties" | "patternProperties" | "$defs":
            names = PATTERNS if name == "patternProperties" else ["a", "b", *STRINGS]
            return {chance.choice(names): schema(chance, depth - 1) for _ in range(chance.randrange(4))}
        case "items" | "additionalProperties" | "not" | "if":
            return schema(chance, depth - 1)
        case "const" | "title" | "x-guidance" | "$id" | "$schema":
            return value(chance)
        case _:
            return number(chance)


KEYWORDS = [
    *("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format"),
    *(
        "minLength",
        "maxLength",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "properties",
        "required",
        "$ref",
        "$defs",
    ),
    *("additionalProperties", "patternProperties", "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "not"),
    *("if", "title", "x-guidance", "$id", "$schema"),
]


def schema(chance: random.Random, depth: int) -> Any:
    """A schema of at most ``depth`` levels."""
    if depth <= 0:
        return chance.choice([{}, {"type": chance.choice(TYPES)}, True, False, {"$ref": chance.choice(REFERENCES)}])
    names = chance.sample(KEYWORDS, chance.randrange(1, 6))
    found = {name: keyword(chance, name, depth) for name in names}
    return {"type": chance.choice(TYPES), **found} if chance.random() < 0.7 else found


def main() -> int:
    """Try them."""
    from steelyard_runtime.engine.json_output import JsonOutput, JsonOutputError
    from steelyard_runtime.engine.llama import Model

    path, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    model = Model(path, gpu_layers=0)
    output, vocabulary = JsonOutput(model.vocabulary), model.vocabulary
    output.grammar(None)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    done = refused = unfinished = 0
    for seed in range(first, first + count):
        chance = random.Random(seed)
        tried = {"type": "object", **schema(chance, 1)} if seed % 7 == 0 else schema(chance, 4)
        print(seed, file=sys.stderr, flush=True)
        signal.alarm(SECONDS_EACH)
        try:
            text = output.grammar(tried).begin()
        except JsonOutputError:
            refused += 1
            continue
        written = b""
        try:
            for _ in range(TOKENS):
                token = chance.choice(text.allowed().nonzero()[0].tolist())
                text.add(token)
                if vocabulary.ends_generation(token):
                    json.loads(written)
                    done += 1
                    break
                written += vocabulary.token_bytes(token)
            else:
                unfinished += 1
        except JsonOutputError:
            unfinished += 1
    signal.alarm(0)
    print(json.dumps({"done": done, "refused": refused, "unfinished": unfinished}))
    model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
