"""Warnings about a chat template that tries more than writing a prompt.

A template is a program that comes with the weights. Our server runs it in a sandbox that refuses all of this, so these
are warnings: another program may run the same file without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

from steelyard.exit_codes import CommandError, ExitCode

_LOOP_METHODS = frozenset({"cycle", "changed"})
_MACRO_CALLS = frozenset({"caller", "super"})


def review(source: str | None) -> list[str]:
    """What in a chat template could execute something, one sentence each; the template is parsed and never run.

    Args:
        source: Jinja source, as the GGUF file carries it, or None.

    Raises:
        CommandError: Jinja is not installed.
    """
    if source is None:
        return []
    try:
        from jinja2.parser import Parser

        from steelyard_runtime.template_sandbox import TemplateSandbox
    except ImportError as error:
        raise CommandError(
            "jinja2 is not installed in this Python environment",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[models]'.",
        ) from error
    sandbox = TemplateSandbox(today=date(2024, 1, 1))
    try:
        # The parser alone: the sandbox's own one already adds its metering to the tree.
        tree = Parser(sandbox, source).parse()
        found = sorted(set(_findings(tree, sandbox)))
    except Exception as error:  # a hostile text may break the parser in any way, by its depth for one
        return [f"the chat template cannot be parsed: {type(error).__name__}: {error}"]
    return [
        f"the chat template, line {line}, {what}; Steelyard's sandbox refuses it, another program may run it"
        for line, what in found
    ]


def _findings(tree: Any, sandbox: Any) -> Iterator[tuple[int, str]]:
    from jinja2 import nodes

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


def _stranger(call: Any, defined: set[str]) -> str | None:
    """What is called, unless chat templates may call it."""
    from jinja2 import nodes

    from steelyard_runtime.template_sandbox import METHODS

    allowed = frozenset[str]().union(*METHODS.values()) | _LOOP_METHODS
    if isinstance(call.node, nodes.Name):
        return None if call.node.name in defined else f"{call.node.name}()"
    if isinstance(call.node, nodes.Getattr):
        return None if call.node.attr in allowed else f".{call.node.attr}()"
    return "the result of an expression"


def _private(argument: Any) -> str | None:
    value = getattr(argument, "value", None)
    return value if isinstance(value, str) and value.startswith("_") else None


def _is_dunder(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 4 and stripped.startswith("__") and stripped.endswith("__") and " " not in stripped
