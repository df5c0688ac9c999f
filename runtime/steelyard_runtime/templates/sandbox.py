"""The Jinja environment of one chat template, in the child process that renders it.

A template comes inside a model file and is as trustworthy as that. Jinja's immutable sandbox and the lists below keep
it away from Python's internals, files and other templates. What it costs is bounded from outside, by the process.

Every text in it knows its origin (see ``traced_text``): the template's literals, and the variables of the model, are
its own; the messages are their callers'.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import types
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from markupsafe import escape

from steelyard_runtime.templates.traced_text import SOMEONE, TEMPLATE, Text, concatenate, text, to_json

_FILTERS = """
    abs capitalize count d default dictsort e escape first float indent int items join last length list
    lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum
    title tojson trim unique upper
"""
FILTERS = frozenset(_FILTERS.split())
_TEXT_METHODS = """
    capitalize count endswith find index isalnum isalpha isdigit islower isnumeric isspace isupper join
    lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split
    splitlines startswith strip title upper
"""
METHODS: dict[type, frozenset[str]] = {
    Text: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}
_STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,64}")
_WORDS = re.compile(r"([-\s({\[<]+)")

# The fixed answer of strftime_now: the date that Llama 3 templates themselves fall back to. A clock would make equal
# requests give different prompts.
TEMPLATE_DATE = date(2024, 7, 26)


class RefusalError(TemplateError):
    """The template called ``raise_exception``.

    Attributes:
        words: Its words.
    """

    def __init__(self, words: Any) -> None:
        super().__init__("refused")
        self.words = words if isinstance(words, Text) else text(str(words), SOMEONE)


class _GenerationBlock(Extension):
    """``{% generation %}``, which marks text for training; it renders as what it encloses."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CodeGenerator(CodeGenerator):
    """Compiles literals to texts of the template's own."""

    environment: TemplateSandbox

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(self._literal(value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: ARG002, N802
        self.write(self._literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        parts: list[nodes.Expr] = [node]
        while isinstance(parts[0], nodes.Add):  # a + b + c is (a + b) + c
            parts[:1] = [parts[0].left, parts[0].right]
        self.write("environment.added((")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def _literal(self, value: str) -> str:
        self.environment.literals.append(text(str.__str__(value), TEMPLATE))
        return f"environment.literals[{len(self.environment.literals) - 1}]"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one template.

    Args:
        source: Jinja source.

    Attributes:
        literals: The template's string literals; compiled code refers to them by number.

    Raises:
        Exception: Whatever a faulty source raises in the compiler.
    """

    code_generator_class = _CodeGenerator
    concat = staticmethod(concatenate)
    intercepted_binops = frozenset({"%"})

    def __init__(self, source: str = "") -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
            finalize=self.written,
            cache_size=0,
        )
        self.literals: list[Text] = []
        self.globals = {
            "range": safe_range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.filters = {name: function for name, function in self.filters.items() if name in FILTERS}
        self.filters |= {
            "e": self._escape,
            "escape": self._escape,
            "indent": _indent,
            "join": self._join,
            "safe": self.written,
            "string": self.written,
            "title": lambda value: self.written(value).mapped(_title),
            "tojson": _tojson,
        }
        self._template = self.from_string(source)

    def render(self, variables: Mapping[str, Any]) -> Text:
        """Render the template.

        Raises:
            RefusalError: The template itself refuses the messages.
            Exception: Whatever else a faulty template raises.
        """
        template = self._template
        return concatenate(template.root_render_func(template.new_context(dict(variables))))

    def written(self, value: Any) -> Text:
        """Write a value out, as ``{{ value }}`` does."""
        if isinstance(value, Text):
            return value
        if isinstance(value, str):
            return text(value, SOMEONE)
        _check_plain(value)
        return text(str(value), SOMEONE if isinstance(value, list | tuple | dict) else TEMPLATE)

    def joined(self, values: Iterable[Any]) -> Text:
        """Join what ``~`` joins."""
        return concatenate(map(self.written, values))

    def added(self, values: tuple[Any, ...]) -> Any:
        """Add from left to right; texts at once, because that is what templates do most."""
        for value in values:
            if not isinstance(value, str):
                return functools.reduce(operator.add, values)
        return concatenate(values)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what a chat template may call."""
        self = __self
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, types.BuiltinMethodType | types.MethodType) and not isinstance(owner, LoopContext):
            name = __obj.__name__
            if isinstance(owner, str) and not isinstance(owner, Text):
                owner = text(owner, SOMEONE)
                __obj = getattr(owner, name)
            if name not in METHODS.get(type(owner), frozenset()):
                raise SecurityError(f"a chat template may not call {type(owner).__name__.lower()}.{name}")
            return __obj(*args, **{key: value for key, value in kwargs.items() if not key.startswith("_")})
        if not (
            isinstance(__obj, Macro | BlockReference | LoopContext | Undefined)
            or isinstance(owner, LoopContext)
            or any(__obj is allowed for allowed in self.globals.values())
        ):
            raise SecurityError(f"a chat template may not call {type(__obj).__name__} objects")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, symbol: str, left: Any, right: Any) -> Any:
        """Refuse to format text."""
        if isinstance(left, str):
            raise SecurityError("a chat template may not format text with '%'")
        return super().call_binop(context, symbol, left, right)

    def _escape(self, value: Any) -> Text:
        return self.written(value).mapped(lambda part: str(escape(part)))

    def _join(self, value: Iterable[Any], d: Any = "", attribute: Any = None) -> Text:
        if attribute is not None:
            value = map(make_attrgetter(self, attribute), value)
        return self.written(d).join(map(self.written, value))


def _check_plain(value: Any) -> None:
    """Refuse to write out objects of the sandbox itself, whose texts hold addresses."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(itertools.chain(item, item.values()))
        elif not (item is None or isinstance(item, str | int | float | Undefined)):
            raise SecurityError(f"a chat template may not write out {type(item).__name__} objects")


def _raise_exception(message: Any) -> NoReturn:
    raise RefusalError(message)


def _strftime_now(form: str) -> Text:
    if not _STRFTIME.fullmatch(form):
        raise SecurityError(f"strftime_now takes a plain format of at most 64 characters, not {form[:80]!r}")
    return text(TEMPLATE_DATE.strftime(str.__str__(form)), TEMPLATE)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> Text:
    """JSON as chat templates expect it: no HTML escapes, text as it is."""
    return to_json(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Text:
    newline = text("\n", TEMPLATE)
    pad = width if isinstance(width, str) else text(" " * width, TEMPLATE)
    lines = concatenate((value, newline)).splitlines()
    parts: list[str] = [pad] if first else []
    for number, line in enumerate(lines):
        if number:
            parts += [newline, pad] if line or blank else [newline]
        parts.append(line)
    return concatenate(parts)


def _title(value: str) -> str:
    return "".join(word[0].upper() + word[1:].lower() for word in _WORDS.split(value) if word)
