"""Patterns and checks mean ASCII: ``\\d``, ``\\w`` and ``str.isdigit`` take the digits and letters of every script."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLASSES = re.compile(r"(?<!\\)(?:\\\\)*\\[dDwW]")
METHODS = frozenset({"isdigit", "isdecimal", "isnumeric", "isalnum", "isalpha"})


def sources() -> list[str]:
    """Python files of the repository, tests left out, with those that are not committed yet."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if not name.startswith("tests/") and (ROOT / name).is_file()]


def faults(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    in_ascii = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and re.search(r"\bre\.(ASCII|A)\b", ast.unparse(node))
        for part in ast.walk(node)
    }
    # `value.isascii() and value.isdigit()`
    after_isascii = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.BoolOp) and ".isascii()" in ast.unparse(node)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CLASSES.search(node.value):
            if id(node) not in documentation | in_ascii:
                yield f"line {node.lineno}: {node.value!r}; write [0-9] or [A-Za-z0-9_]"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
            pattern = node.args[0]
            if isinstance(pattern, ast.Constant) and str(pattern.value).endswith("$"):
                yield f"line {node.lineno}: {pattern.value!r}; $ takes a line's end after it: use fullmatch"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS and id(node) not in after_isascii:
            yield f"line {node.lineno}: .{node.attr}(); ask .isascii() first, or match [0-9]+"


@pytest.mark.parametrize("name", sources())
def test_no_pattern_takes_other_scripts(name: str) -> None:
    assert list(faults((ROOT / name).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r'P = re.compile(r"\d{12}")', True),
        (r'P = Field(pattern=r"^[a-z]\w*$")', True),
        (r'P = rf"{a}\d"', True),
        (r'P = re.match(r"[0-9]+$", a)', True),
        ("P = x.isdigit()", True),
        (r'P = re.compile(r"\d{12}", re.ASCII)', False),
        (r'P = re.compile(r"[0-9]\\d")', False),
        ("P = x.isascii() and x.isdigit()", False),
        (r"def f():" "\n" r'    r"""About \d."""', False),
    ],
)
def test_the_search_finds_them(text: str, found: bool) -> None:
    assert bool(list(faults(text))) is found
