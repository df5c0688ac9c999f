"""JSON of a schema: before each token, which tokens of the vocabulary may follow. The only importer of llguidance.

llama.cpp's own grammars were measured first: on a vocabulary of 151,000 tokens a pattern such as ``(a?){100}`` took
them seconds a token, a state without a way on ended the process, and their converter left out what it did not know.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.engine.llama import Vocabulary
from steelyard_runtime.errors import Kind, Problem

LARGEST_SCHEMA = 1 << 17
"""Bytes of a schema as JSON. Compiling one of many properties takes as much time as the square of their number."""
LARGEST_NUMBER = 2**53
"""llguidance holds numbers as doubles, which round larger integers; it came to an end of its stack with some."""
FINEST_MULTIPLE = 10_000
"""Of the last digit of ``multipleOf``: of larger ones llguidance makes a state for each remainder, without a limit."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}
# All of them, so that no schema can set them for itself. One space at most: a model that may write any will not end.
OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "whitespace_pattern": " ?",
    "coerce_one_of": False,
    "lenient": False,
}
# Time and memory are bounded by the library's own limits; only its errors must not quote what was generated.
LIMITS = LLParserLimits(verbose_errors=False)

Allowed = npt.NDArray[np.bool_]


class JsonOutputError(Exception):
    """A schema that cannot be kept, or not any longer; the message says why."""


def problem_of(error: JsonOutputError) -> Problem:
    """For the caller whose schema it is."""
    where = "response_format.json_schema.schema"
    return Problem(Kind.INVALID, f"the answer cannot be held to the JSON schema: {error}", param=where)


class JsonOutput:
    """Compiles schemas for one vocabulary. Safe from any thread.

    Args:
        vocabulary: Of the model. What llguidance needs of it is made with the first schema: about a second for 151,000
            tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()

    def grammar(self, schema: dict[str, Any] | None) -> JsonGrammar:
        """A schema's grammar, or that of any JSON object for None. Takes a while; not for the engine's thread.

        Raises:
            JsonOutputError: The schema is wrong, too complex, or has a keyword that would not be enforced.
        """
        text = json.dumps(ANY_OBJECT if schema is None else schema)
        if len(text) > LARGEST_SCHEMA:
            raise JsonOutputError(f"it has {len(text)} bytes as JSON and {LARGEST_SCHEMA} are allowed; shorten it")
        _check_numbers(schema)
        try:
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=OPTIONS)  # type: ignore[arg-type]
        except ValueError as error:
            raise JsonOutputError(str(error)) from error
        with self._lock:
            tokenizer = self._tokenizer
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise JsonOutputError(_reason(matcher.get_error()))
        return JsonGrammar(matcher, size=self._vocabulary.size)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        tokens = _Tokens(self._vocabulary)
        if not tokens.ends:
            raise JsonOutputError("the model has no token that ends a text")
        return LLTokenizer(TokenizerWrapper(tokens), n_vocab=self._vocabulary.size, eos_token=tokens.ends, slices=None)


class JsonGrammar:
    """One request's grammar. Another request has its own, also of the same schema.

    Copies of a matcher share what llguidance works out on the way, its limits on that, and its errors: kept for all, a
    schema would wear out, and one caller's answer could end another's.

    Args:
        matcher: At a text's beginning; owned from now on.
        size: Tokens of the vocabulary.
    """

    def __init__(self, matcher: LLMatcher, *, size: int) -> None:
        self._matcher = matcher
        self._size = size

    def begin(self) -> JsonText:
        """The beginning of a text."""
        return JsonText(self._matcher.deep_copy(), size=self._size)


class _Tokens:
    """A vocabulary as llguidance reads it. Control tokens have no bytes and so are never part of a text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self.special_token_ids = [token for token, data in enumerate(self.tokens) if not data]
        self.ends = [token for token in range(vocabulary.size) if vocabulary.ends_generation(token)]
        self.eos_token_id = self.ends[0] if self.ends else -1
        self.bos_token_id = None if vocabulary.bos < 0 else vocabulary.bos

    def __call__(self, text: str) -> Sequence[int]:
        return self._vocabulary.encode([Piece(text)], start=False)


class JsonText:
    """A text on its way. Used on one thread.

    Args:
        matcher: At the text's beginning; owned from now on.
        size: Tokens of the vocabulary.
    """

    def __init__(self, matcher: LLMatcher, *, size: int) -> None:
        self._matcher = matcher
        self._size = size

    def allowed(self) -> Allowed:
        """Return which tokens may follow, shape ``(vocabulary,)``. At least one may.

        Raises:
            JsonOutputError: None may, or finding out would take too long.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        if not allowed.any():
            raise JsonOutputError("nothing that fits it can be written with this model's tokens")
        return allowed

    def add(self, token: int) -> None:
        """Go on behind ``token``, one of those that are allowed.

        Raises:
            JsonOutputError: It was not, or going on would take too long.
        """
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise JsonOutputError(_reason(self._matcher.get_error()))


def _check_numbers(value: Any, *, key: str = "") -> None:
    """Refuse, anywhere in a schema, numbers that llguidance would round, or take too long for."""
    match value:
        case bool() | None:
            return
        case int() | float() if abs(value) > LARGEST_NUMBER:
            raise JsonOutputError("a number in it is beyond 2**53, where integers would be rounded")
        case int() | float() if key == "multipleOf":
            _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            steps = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
            if steps > FINEST_MULTIPLE:
                raise JsonOutputError(
                    f"multipleOf is {value}, {steps} times its last digit; at most {FINEST_MULTIPLE} is supported"
                )
        case dict():
            for name, inner in value.items():
                _check_numbers(inner, key=name)
        case list():
            for inner in value:
                _check_numbers(inner)


def _reason(error: str) -> str:
    """The library's reason on one line: a wrong pattern's has the place below it."""
    if error.startswith("panic"):
        return "it is too complex"
    return " ".join(error.split())[:300]
