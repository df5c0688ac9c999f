"""Each command of the support engineer's hour, from the page itself, in its order, with the embedded model."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.evaluation.result import read_evaluation
from steelyard.serving.server_process import free_port, running_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "support-hour.md").read_text(encoding="utf-8")
BIN = f"{Path(sys.executable).parent}/"
SERVED = "http://127.0.0.1:8080"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```bash hour( serve)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_tickets_are_as_many_as_the_page_says() -> None:
    tickets, later = (
        list(csv.DictReader((ROOT / "examples" / name).open(encoding="utf-8", newline="")))
        for name in ("tickets.csv", "tickets-june.csv")
    )
    assert (len(tickets), len(later)) == (100, 40)
    assert len({each["team"] for each in tickets} - {"none_of_these"}) == 8
    assert not {each["text"] for each in tickets} & {each["text"] for each in later}


@pytest.mark.usefixtures("gemma")
def test_the_hour(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    port = free_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {"STEELYARD_URL": url}
    said = ""

    def run(code: str) -> None:
        nonlocal said
        code = code.replace(".venv/bin/", BIN).replace(SERVED, url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        said = done.stdout

    listed = blocks()
    (at,) = [index for index, (serve, _) in enumerate(listed) if serve]
    for _, code in listed[:at]:
        run(code)
    found = read_evaluation(tmp_path / "june.json").figures
    assert found.accuracy.value >= 0.8
    assert "Which team should answer this ticket?" in (tmp_path / "june.html").read_text(encoding="utf-8")
    arguments = listed[at][1].split()
    assert arguments[:2] == [".venv/bin/steelyard", "serve"]
    served = [*arguments[2:-1], str(tmp_path / arguments[-1]), "--port", str(port)]
    with running_server(served, url=url, log=tmp_path / "log"):
        for _, code in listed[at + 1 :]:
            run(code)
    assert '"action"' in said
