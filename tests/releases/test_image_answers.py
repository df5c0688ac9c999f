"""What ECR answers of an image is read with care: what is no image's is told, and raises nothing else."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import urllib.request
from typing import Any

import pytest
from test_release_manifest import content

from steelyard.releases import checks
from steelyard.releases.manifest import ReleasedImage
from steelyard_base.exit_codes import CommandError

NONE = ("", "<html>", "[]", "null", "7", "{}", '{"config": null}', '{"config": []}', "[" * 100_000)


def image(manifest: str) -> ReleasedImage:
    """Our image of a release, with the digest of this manifest."""
    said: dict[str, Any] = content()["images"]["decision"]["cpu"]
    return ReleasedImage.model_validate({**said, "digest": f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"})


@pytest.mark.parametrize("manifest", NONE, ids=lambda text: text[:20])
def test_a_manifest_that_is_no_image_s(manifest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "own_registry", lambda *_given: ("111122223333", "steelyard-dev"))
    monkeypatch.setattr(checks, "image_manifest", lambda *_given: (manifest, ""))
    given: Any = None
    (fault,) = checks.label_faults(given, given, image(manifest))
    assert "differs: it is not that of one image" in fault


@pytest.mark.parametrize(
    "configuration",
    [*NONE, '{"config": {"Labels": null}}', '{"config": {"Labels": ["a"]}}'],
    ids=lambda text: text[:30],
)
def test_a_configuration_without_labels(configuration: str) -> None:
    assert checks._labels_in(configuration.encode()) == {}
    assert checks._labels_in(json.dumps({"config": {"Labels": {"a": "b"}}}).encode()) == {"a": "b"}


class Broken(io.BytesIO):
    """An answer that breaks off."""

    def read(self, *_size: Any) -> bytes:
        raise http.client.IncompleteRead(b"{")


def test_a_configuration_that_breaks_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ecr:
        def client(self, _service: str) -> Any:
            return self

        def get_download_url_for_layer(self, **_given: str) -> dict[str, str]:
            return {"downloadUrl": "https://ecr.example/layer"}

    monkeypatch.setattr(checks, "own_registry", lambda *_given: ("111122223333", "steelyard-dev"))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_given, **_options: Broken())
    aws: Any = Ecr()
    with pytest.raises(
        CommandError, match="cannot fetch the configuration sha256:a of steelyard-dev from ECR: Incompl"
    ):
        checks._labels(aws, aws, "sha256:a")
