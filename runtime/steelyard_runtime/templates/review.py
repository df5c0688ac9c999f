"""A review: the parts of a chat template that could execute something in a program that runs it without a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes
from jinja2.parser import Parser

from steelyard_runtime.templates.sandbox import METHODS, TemplateSandbox

MAX_FINDINGS = 100
_LOOP_METHODS = frozenset({"cycle", "changed"})
_MACRO_CALLS = frozenset({"caller", "super"})
_METHODS = frozenset[str]().union(*METHODS.values()) | _LOOP_METHODS


def findings(source: str) -> list[tuple[int, str]]:
    """Parse a template, without running it, and list what the sandbox would refuse: line, and what is done there.

    Raises:
        Exception: Whatever the parser raises; a hostile text may break it in any way, by its depth for one.
    """
    sandbox = TemplateSandbox()
    return sorted(set(_findings(Parser(sandbox, source).parse(), sandbox)))[:MAX_FINDINGS]


def _findings(tree: nodes.Template, sandbox: TemplateSandbox) -> Iterator[tuple[int, str]]:
    defined = {macro.name for macro in tree.find_all(nodes.Macro)} | _MACRO_CALLS | set(sandbox.globals)
    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            yield node.lineno, f"reads the attribute {node.attr}"
        elif isinstance(node, nodes.Getitem) and _private(node.arg):
            yield node.lineno, f"reads the attribute {_private(node.arg)}"
        elif isinstance(node, nodes.Const) and isinstance(node.value, str) and _is_dunder(node.value):
            yield node.lineno, f"names {node.value.strip()}"
        elif isinstance(node, nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends):
            yield node.lineno, "reads another template"
        elif isinstance(node, nodes.Filter) and node.name not in sandbox.filters:
            yield node.lineno, f"uses the filter {node.name}"
        elif isinstance(node, nodes.Call) and (called := _stranger(node, defined)):
            yield node.lineno, f"calls {called}"


def _stranger(call: nodes.Call, defined: set[str]) -> str | None:
    """Name the function that is called, unless chat templates may call it."""
    if isinstance(call.node, nodes.Name):
        return None if call.node.name in defined else f"{call.node.name}()"
    if isinstance(call.node, nodes.Getattr):
        return None if call.node.attr in _METHODS else f".{call.node.attr}()"
    return "the result of an expression"


def _private(argument: nodes.Node) -> str | None:
    value = getattr(argument, "value", None)
    return value if isinstance(value, str) and value.startswith("_") else None


def _is_dunder(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 4 and stripped.startswith("__") and stripped.endswith("__") and " " not in stripped
