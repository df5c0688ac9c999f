"""``python -m steelyard_localcloud --home DIR [--port N]``: a local cloud in the foreground, until Ctrl-C.

Exit status: 0 after SIGTERM or Ctrl-C; 1 when one runs in DIR already.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from steelyard_localcloud.cloud import running_cloud
from steelyard_localcloud.emulator import run
from steelyard_localcloud.options import DEFAULT_ACCOUNT, DEFAULT_REGION, Options
from steelyard_localcloud.sagemaker.instance_types import instance_types


def main(words: list[str] | None = None) -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m steelyard_localcloud",
        description="A local AWS cloud whose SageMaker endpoints are processes of this machine. DIR/cloud.json says "
        "where it listens and with which key; it is written once the cloud can be reached.",
    )
    parser.add_argument("--home", type=Path, required=True, metavar="DIR", help="folder for everything it writes")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--region", default=DEFAULT_REGION, help="region of callers that name none (%(default)s)")
    parser.add_argument("--account", default=DEFAULT_ACCOUNT, help="account of the administrator's key (%(default)s)")
    parser.add_argument("--llama-server", metavar="PATH", help="binary that runs in place of the chat container")
    parser.add_argument(
        "--quota",
        action="append",
        default=[],
        type=_quota,
        metavar="TYPE=N",
        help="instances of a type that endpoints may have, such as ml.g5.xlarge=2; without it 20, and none with a GPU",
    )
    parser.add_argument(
        "--without-capacity", action="append", default=[], metavar="TYPE", help="an instance type that is sold out"
    )
    given = parser.parse_args(words)
    home = given.home.resolve()
    if (running := running_cloud(home)) is not None:
        sys.stderr.write(f"a local cloud runs in {home} already, at {running.url} (process {running.pid})\n")
        return 1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("botocore", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return run(
        Options(
            home=home,
            port=given.port,
            region=given.region,
            account=given.account,
            llama_server=given.llama_server,
            quotas=dict(given.quota),
            types_without_capacity=given.without_capacity,
        )
    )


def _quota(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if name not in instance_types():
        raise argparse.ArgumentTypeError(f"{name!r} is no instance type of SageMaker's endpoints")
    if not (count.isascii() and count.isdecimal() and len(count) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} must be TYPE=N with a whole number N, such as ml.g5.xlarge=2")
    return name, int(count)


if __name__ == "__main__":
    sys.exit(main())
