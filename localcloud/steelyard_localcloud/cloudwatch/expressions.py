"""Metric math: the arithmetic of CloudWatch expressions, for one period.

``+ - * / ^``, comparisons, ``AND OR``, and the functions in ``FUNCTIONS``. A missing value makes a result missing,
except through ``FILL``; division by zero is missing too.
"""

from __future__ import annotations

import ast
import operator
import re
import threading
from collections.abc import Callable, Mapping
from typing import cast

from steelyard_localcloud.errors import ServiceError, not_emulated

Value = float | None

_BINARY: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Gt: lambda left, right: float(left > right),
    ast.GtE: lambda left, right: float(left >= right),
    ast.Lt: lambda left, right: float(left < right),
    ast.LtE: lambda left, right: float(left <= right),
    ast.Eq: lambda left, right: float(left == right),
    ast.NotEq: lambda left, right: float(left != right),
}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "MAX": max,
    "MIN": min,
    "SUM": sum,
    "AVG": lambda values: sum(values) / len(values),
}
_PLAIN = (ast.Name, ast.BinOp, ast.BoolOp, ast.List, ast.expr_context, ast.boolop, ast.USub)
FUNCTIONS = ("FILL", "IF", "ABS", *_AGGREGATES)

# Python 3.11 keeps the depth of ast.parse once for all threads, and raises SystemError where two mix theirs up.
_PARSING = threading.Lock()


def parse(expression: str) -> ast.expr:
    """An expression, checked.

    Raises:
        ServiceError: It is malformed, or uses what the local cloud does not compute.
    """
    text = re.sub(r"\bAND\b|&&", " and ", expression)
    text = re.sub(r"\bOR\b|\|\|", " or ", text).replace("^", "**").strip()
    try:
        with _PARSING:
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ServiceError(f"The metric math expression {expression!r} is malformed: {error.msg}.") from error
    for node in ast.walk(tree):
        _check(node, expression)
    return tree


def names(tree: ast.expr) -> set[str]:
    """The ids that an expression refers to."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS}


def evaluate(tree: ast.expr, values: Mapping[str, Value]) -> Value:
    """The expression's value in one period; None when it is missing.

    Args:
        tree: What ``parse`` gave.
        values: Value of each id.
    """
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]  # _check let only numbers through
    if isinstance(tree, ast.Name):
        return values[tree.id]
    if isinstance(tree, ast.UnaryOp):
        operand = evaluate(tree.operand, values)
        return None if operand is None else -operand
    if isinstance(tree, ast.BinOp):
        return _apply(_BINARY[type(tree.op)], evaluate(tree.left, values), evaluate(tree.right, values))
    if isinstance(tree, ast.Compare):
        left, right = evaluate(tree.left, values), evaluate(tree.comparators[0], values)
        return _apply(_BINARY[type(tree.ops[0])], left, right)
    if isinstance(tree, ast.BoolOp):
        parts = [evaluate(part, values) for part in tree.values]
        combine = all if isinstance(tree.op, ast.And) else any
        return None if None in parts else float(combine(bool(part) for part in parts))
    call = cast(ast.Call, tree)
    return _call(cast(ast.Name, call.func).id, call.args, values)


def _call(name: str, arguments: list[ast.expr], values: Mapping[str, Value]) -> Value:
    if name == "FILL":
        value = evaluate(arguments[0], values)
        return evaluate(arguments[1], values) if value is None else value
    if name == "IF":
        condition = evaluate(arguments[0], values)
        return None if condition is None else evaluate(arguments[1 if condition else 2], values)
    listed = arguments[0].elts if isinstance(arguments[0], ast.List) else arguments
    found = [value for value in (evaluate(part, values) for part in listed) if value is not None]
    if not found:
        return None
    return abs(found[0]) if name == "ABS" else _AGGREGATES[name](found)


def _apply(function: Callable[[float, float], float], left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    try:
        return function(left, right)
    except (ZeroDivisionError, OverflowError):
        return None


def _check(node: ast.AST, expression: str) -> None:
    if isinstance(node, ast.Call):
        arguments = {"FILL": 2, "IF": 3, "ABS": 1}
        known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        if not known or not node.args or len(node.args) != arguments.get(ast.unparse(node.func), len(node.args)):
            raise not_emulated(f"{ast.unparse(node)} in the metric math expression {expression!r}")
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise not_emulated(f"{node.value!r} in the metric math expression {expression!r}")
    elif isinstance(node, ast.Compare):
        if len(node.ops) != 1:
            raise not_emulated(f"chained comparisons in the metric math expression {expression!r}")
    elif isinstance(node, ast.UnaryOp):
        if not isinstance(node.op, ast.USub):
            raise not_emulated(f"{ast.unparse(node)} in the metric math expression {expression!r}")
    elif not isinstance(node, _PLAIN) and type(node) not in _BINARY:
        raise not_emulated(f"{type(node).__name__} in the metric math expression {expression!r}")
