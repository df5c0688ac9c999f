"""A Jinja sandbox for chat templates, which come inside model files and are as trustworthy as those.

Jinja's own immutable sandbox keeps a template away from Python's internals. This one also bounds what a template may
cost. Every loop pass, call, filter, concatenation and literal is charged to an allowance of ``MAX_STEPS`` steps before
it is carried out; texts cost a step per 64 characters, lists a step per 4 items. So the time of a render is bounded,
and its memory by about 64 characters or 4 list items per step. Filters, methods and globals are those that chat
templates use; everything else, files and other templates included, does not exist.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import threading
import types
from collections.abc import Callable, Iterator, Sized
from datetime import date
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 500_000
MAX_OUTPUT_CHARACTERS = 8 << 20
_CHARACTERS_PER_STEP_BITS = 6
_MAX_INTEGER_BITS = 512
_MAX_INDENT = 64
_MACRO_STEPS = 8  # a macro call takes about as long as eight loop passes

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
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}
_DEEP_FILTERS = frozenset({"join", "max", "min", "sort", "string", "sum", "tojson", "unique", "e", "escape"})
_STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,64}")


class RefusalError(TemplateError):
    """The template called ``raise_exception``."""


class WorkLimitError(TemplateError):
    """The template used up its allowance."""


class _GenerationBlock(Extension):
    """``{% generation %}``, which marks text for training; it renders as what it encloses."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metering(NodeTransformer):
    """Rewrites a template so that each costly construct first asks the environment for allowance."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        if node.test is not None:
            node.iter = _ask("loop_over", node.iter)
        node.body.insert(0, _tick(node.body))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _tick(node.body))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _tick(node.body))
        return node

    def visit_Block(self, node: nodes.Block) -> nodes.Block:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _tick(node.body))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _ask("concatenate", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _ask("weigh", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _ask("weigh", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _ask("weigh", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _ask("touch", node.node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        cheap = isinstance(node.expr, nodes.Const) or (len(node.ops) == 1 and isinstance(node.ops[0].expr, nodes.Const))
        for operand in node.ops:
            if not isinstance(operand.expr, nodes.Const) and not (cheap and operand.op not in ("in", "notin")):
                operand.expr = _ask("weigh", operand.expr)
        if not cheap:
            node.expr = _ask("weigh", node.expr)
        return node


def _ask(name: str, *arguments: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _tick(body: list[nodes.Node]) -> nodes.Node:
    """A statement that charges one step, and what the body's literal text will cost each time it is written."""
    literal = sum(len(data.data) for node in body for data in (node, *node.find_all(nodes.TemplateData))
                  if isinstance(data, nodes.TemplateData))  # fmt: skip
    return nodes.ExprStmt(_ask("tick", nodes.Const(1 + (literal >> _CHARACTERS_PER_STEP_BITS))))


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template. Renders of several threads do not share an allowance.

    Args:
        today: What ``strftime_now`` formats. A fixed date, because the clock would make two equal requests differ.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, today: date) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
            finalize=self._finalize,
            cache_size=0,
        )
        self._today = today
        self._allowance = threading.local()
        self.globals = {
            "range": safe_range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self.filters = {name: self._metered_filter(name, f) for name, f in self.filters.items() if name in FILTERS}
        self.filters["tojson"] = self._metered_filter("tojson", _tojson)
        self.tests = {name: self._metered_test(test) for name, test in self.tests.items()}

    def render(self, template: Any, variables: dict[str, Any]) -> str:
        """The text of a template of this environment.

        Raises:
            RefusalError: The template itself refuses the messages.
            WorkLimitError: It costs more steps, or writes more characters, than it may.
            Exception: Whatever else a faulty template raises.
        """
        self.allow()
        parts: list[str] = []
        size = 0
        for part in template.generate(variables):
            size += len(part)
            if size > MAX_OUTPUT_CHARACTERS:
                raise WorkLimitError(f"it writes more than {MAX_OUTPUT_CHARACTERS} characters")
            parts.append(part)
        return "".join(parts)

    def allow(self) -> None:
        """Give this thread a full allowance."""
        self._allowance.left = MAX_STEPS

    def tick(self, steps: int = 1) -> None:
        """Charge steps to this thread's allowance."""
        left = getattr(self._allowance, "left", 0) - steps
        self._allowance.left = left
        if left < 0:
            raise WorkLimitError(f"it takes more than {MAX_STEPS} steps")

    def loop_over(self, items: Any) -> Any:
        """Charge a loop whose condition runs for items that its body never sees."""
        self.tick(len(items) if isinstance(items, Sized) else 1)
        return items

    def touch(self, value: Any) -> Any:
        """Charge one pass over a value, not over what it contains."""
        self.tick(_cost(value))
        return value

    def weigh(self, value: Any) -> Any:
        """Charge one pass over a value and all it contains, so that nested repetition cannot grow unseen."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            self.tick(_cost(item))
            if isinstance(item, list | tuple):
                waiting.extend(item)
            elif isinstance(item, dict):
                waiting.extend(item.values())
        return value

    def concatenate(self, *values: Any) -> str:
        """The ``~`` operator."""
        return self.touch("".join(self._text(value) for value in values))  # type: ignore[no-any-return]

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what a chat template may call, and charge it."""
        self = __self
        if isinstance(__obj, types.MethodType) and __obj.__self__ is self:
            return __obj(*args)
        self.tick((_MACRO_STEPS if isinstance(__obj, Macro) else 1) + sum(map(_cost, args)))
        if isinstance(__obj, types.BuiltinMethodType):
            self._check_method(__obj, args)
            result = __obj(*args, **{k: v for k, v in kwargs.items() if not k.startswith("_")})
            self.tick(_cost(result))
            return result
        if isinstance(__obj, LoopContext):
            self.loop_over(args[0] if args else ())
        elif not (
            isinstance(__obj, Macro | BlockReference)
            or any(__obj is allowed for allowed in self.globals.values())
            or (isinstance(__obj, types.MethodType) and isinstance(__obj.__self__, LoopContext))
        ):
            raise SecurityError(f"a chat template may not call {type(__obj).__name__} objects")
        result = super().call(__context, __obj, *args, **kwargs)
        return self.weigh(result) if __obj is dict else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        """Charge an operator for its result before it is made."""
        if operator == "%" and isinstance(left, str):
            raise SecurityError("a chat template may not format text with '%'")
        if operator == "+":
            if isinstance(left, list | tuple):
                self.weigh(left)
                self.weigh(right)
            else:
                self.tick(1 + _cost(left) + _cost(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**" and (not _is_small(left) or not _is_small(right)):
            raise SecurityError("a chat template may raise only numbers up to 64 to a power up to 64")
        return self.binop_table[operator](left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self.allow()  # constant expressions are evaluated while compiling
        tree = super()._parse(source, name, filename)
        _Metering().visit(tree)
        return tree.set_environment(self)  # type: ignore[return-value]

    def _finalize(self, value: Any) -> str:
        text = self._text(value)
        self.tick(_cost(text))
        return text

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        self.weigh(value)
        _check_plain(value)
        return str(value)

    def _strftime_now(self, form: str) -> str:
        if not _STRFTIME.fullmatch(form):
            raise SecurityError(f"strftime_now takes a plain format of at most 64 characters, not {form[:80]!r}")
        return self._today.strftime(form)

    def _check_method(self, method: types.BuiltinMethodType, args: tuple[Any, ...]) -> None:
        owner: Any = method.__self__
        name = method.__name__
        if name not in METHODS.get(type(owner), frozenset()):
            raise SecurityError(f"a chat template may not call {type(owner).__name__}.{name}")
        if name == "join":
            self._check_join(args[0] if args else (), owner)
        elif name == "replace":
            self._check_replace(owner, *args[:2])
        elif name in ("index", "count") and not isinstance(owner, str):
            self.weigh(owner)
            self.weigh(args)
        self.tick(_cost(owner))

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
                raise SecurityError(f"a chat template may use integers of at most {_MAX_INTEGER_BITS} bits")
            return
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, str | list | tuple):
                steps = max(times, 0) * len(value)
                self.tick(1 + (steps >> _CHARACTERS_PER_STEP_BITS if isinstance(value, str) else steps))
                if not isinstance(value, str):
                    for _ in range(max(times, 0)):
                        self.weigh(value)

    def _check_join(self, items: Any, separator: Any) -> None:
        if not isinstance(items, list | tuple | str):
            self.tick(_cost(items))
            return
        width = len(separator) if isinstance(separator, str) else 0
        self.tick(sum(len(item) + width if isinstance(item, str) else width for item in items) >> 6)

    def _check_replace(self, text: Any, old: Any = "", new: Any = "") -> None:
        if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
            hits = len(text) // len(old) if old else len(text) + 1
            self.tick(1 + (hits * len(new) >> _CHARACTERS_PER_STEP_BITS))

    def _metered_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Filters that want the environment or the context get it as an extra first argument.
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            given = args[skip:]
            if isinstance(given[0], Iterator):  # from map, select and their kin, which are lazy
                given = (list(given[0]), *given[1:])
                args = (*args[:skip], *given)
            if name in _DEEP_FILTERS:
                self.weigh(given)
                if name not in ("max", "min", "sort", "sum", "unique"):
                    _check_plain(given[0])
            self.tick(1 + sum(map(_cost, given)))
            if name == "replace":
                self._check_replace(*given[:3])
            elif name == "join":
                self._check_join(given[0], given[1] if len(given) > 1 else kwargs.get("d", ""))
            elif name == "sum":
                self._check_sum(given)
            elif name == "indent":
                self._check_indent(*given[:2], **kwargs)
            result = function(*args, **kwargs)
            if isinstance(result, Iterator):
                return self._metered_items(result)
            self.tick(_cost(result))
            return result

        return metered

    def _check_sum(self, given: tuple[Any, ...]) -> None:
        if any(not isinstance(item, int | float) for item in given[0]):
            raise SecurityError("a chat template may add up numbers only")

    def _check_indent(self, text: Any, width: Any = 4, **_: Any) -> None:
        size = len(width) if isinstance(width, str) else int(width)
        if size > _MAX_INDENT:
            raise SecurityError(f"a chat template may indent by at most {_MAX_INDENT} characters")
        self.tick(str(text).count("\n") + 1)

    def _metered_items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.tick()
            yield item

    def _metered_test(self, test: Any) -> Callable[..., Any]:
        @functools.wraps(test)
        def metered(*args: Any) -> Any:
            self.tick()
            if len(args) > 1:
                for argument in args:
                    self.weigh(argument)
            return test(*args)

        return metered


def _cost(value: Any) -> int:
    """Steps of one pass over a value: its items, or its characters by 64."""
    if isinstance(value, str):
        return 1 + (len(value) >> _CHARACTERS_PER_STEP_BITS)
    if isinstance(value, list | tuple | dict):
        return 1 + (len(value) >> 2)
    return 1


def _check_plain(value: Any) -> None:
    """Refuse to write out objects of the sandbox itself, whose texts hold addresses or have no bound."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif not (item is None or isinstance(item, str | int | float | Undefined)):
            raise SecurityError(f"a chat template may not write out {type(item).__name__} objects")


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 64


def _raise_exception(message: Any) -> NoReturn:
    raise RefusalError(str(message)[:1000])


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON as chat templates expect it: no HTML escapes, text as it is."""
    if indent is not None and operator.index(indent) > _MAX_INDENT:
        raise SecurityError(f"a chat template may indent by at most {_MAX_INDENT} characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
