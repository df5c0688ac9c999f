"""``steelyard records`` without an endpoint; with one it is in tests/deploy."""

from __future__ import annotations

import pytest

from steelyard import cli
from steelyard_base.exit_codes import ExitCode


def test_an_endpoint_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["records", "absent"]) == ExitCode.USAGE
    assert "there is no endpoint 'absent' in the environment 'dev'; it has " in capsys.readouterr().err
