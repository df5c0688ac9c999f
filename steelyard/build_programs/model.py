"""Fetch one pinned model, verify it and publish it to the artifact bucket: ``images/model.buildspec.yml``.

Everything can be repeated: a model that is in the bucket already is compared, not replaced.

    python -m steelyard.build_programs.model NAME --bucket BUCKET --export FILE    # AWS_REGION names the region
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from steelyard.aws.session import Aws
from steelyard.build_programs.program import build_region, exit_code_of, export, say
from steelyard.models.catalogue import find
from steelyard.models.publisher import publish
from steelyard.models.pull import Tenths, pull
from steelyard_base.exit_codes import CommandError, ExitCode


def publish_model(name: str, *, bucket: str, aws: Aws) -> dict[str, str]:
    """Fetch, verify and publish a model, as far as it is not done yet.

    Returns:
        The variables that the build exports.

    Raises:
        CommandError: The model cannot be fetched, is not the pinned one, or S3 refused.
    """
    progress = Tenths(name, say)
    pull(find(name), progress)
    done = publish(
        name, bucket=bucket, s3=aws.client("s3"), progress=progress, warn=lambda text: say(f"warning: {text}")
    )
    say(f"{name} is at s3://{bucket}/{done.key}")
    return {"MODEL_KEY": done.key, "MODEL_MANIFEST_SHA256": done.manifest_sha256}


def main(arguments: Sequence[str]) -> int:
    """Publish as asked; returns an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m steelyard.build_programs.model", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("name", help="the model's name in the catalogue")
    parser.add_argument("--bucket", required=True, help="the artifact bucket")
    parser.add_argument("--export", type=Path, required=True, help="file for the variables that are exported")
    given = parser.parse_args(arguments)

    def program() -> None:
        region = build_region(os.environ)
        if region is None:
            raise CommandError("a variable of the build is missing: AWS_REGION", code=ExitCode.USAGE)
        export(given.export, publish_model(given.name, bucket=given.bucket, aws=Aws(region)))

    return exit_code_of(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
