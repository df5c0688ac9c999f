"""The command of a pipeline's stages in ``test_pipeline.py``: ours, with templates that the test has made.

``release build`` gives the release that the source names: builds are tried elsewhere.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from by_templates import ByTemplates

from steelyard import cli
from steelyard.aws.session import Aws
from steelyard.commands import promotion
from steelyard.deploy import deployment
from steelyard.environments import files
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import load_release
from steelyard.releases.record import Occasion
from steelyard_localcloud.cloud import register_image
from steelyard_localcloud.details import read_details

MADE: Mapping[str, Any] = json.loads(Path("made.json").read_text())
"""Of the test: the environments, the release, and the folders of the cloud, templates, models and releases."""


class Made(ByTemplates):
    """Deploys the templates that the test has made."""

    def synth(self) -> None:
        release = json.loads(Path(self.release).read_text())["id"]
        shutil.copytree(Path(MADE["templates"], f"{self.environment}-{release}"), self.assembly, dirs_exist_ok=True)


class FromFolder:
    """The models that the test has written."""

    def provide_model(self, aws: Aws, model: Any, *, bucket: str) -> None:
        file, manifest = (Path(MADE["models"], model.name, each) for each in ("weights", "manifest"))
        metadata = {"sha256": model.files[0].sha256}
        s3 = aws.client("s3")
        s3.upload_file(str(file), bucket, model.key + model.files[0].name, ExtraArgs={"Metadata": metadata})
        s3.put_object(Bucket=bucket, Key=model.key + "model-manifest.json", Body=manifest.read_bytes())

    def provide_image(self, digest: str, *, repository: str) -> None:
        register_image(read_details(Path(MADE["home"])), repository, digest)


def environment(name: str) -> Environment:
    return parse_environment(MADE["environments"][name], name=name, source="the test")


def build(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = f"{MADE['release']}.json"
    shutil.copy(Path(MADE["releases"], name), folder / name)


def up(name: str, manifest: str, why: str) -> None:
    made = environment(name)
    deployment.deploy(
        Aws(made.region),
        made,
        load_release(manifest),
        Made(environment=name, release=manifest),
        print,
        note=print,
        supplies=FromFolder(),
        occasion=Occasion(why=why),
    )


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def main(words: list[str]) -> int:
    if words[:2] == ["release", "build"]:
        build(Path(option(words, "--to")))
        return 0
    if words[0] == "up":
        up(option(words, "--env"), option(words, "--release"), option(words, "--why"))
        return 0
    if words[:2] == ["release", "promote"]:
        words = [*words, "--no-check"]
    if words[:2] == ["decision", "evaluate"]:
        words = [*words, "--attacks", "0", "--reversed", "0", "--again", "0"]
    files.load_environment = environment
    promotion.load_environment = environment
    promotion.Cdk = Made
    return cli.run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
