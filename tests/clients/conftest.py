"""The option that writes the table of clients instead of comparing it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help="write docs/reference/clients.md from what ran")
