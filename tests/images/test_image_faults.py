"""What must not become an image, or not run as one: each is refused with a sentence that says what and where."""

from __future__ import annotations

import base64
import importlib.util
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from steelyard.build_programs import container_tool, registry
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import abi, builds, llama

pytestmark = pytest.mark.containers

DIGEST = "sha256:" + "a" * 64
TARGET = registry.Target(
    repository="decision",
    uri="111122223333.dkr.ecr.eu-west-1.amazonaws.com/decision",
    tag="cpu-1",
    region="eu-west-1",
    base_registry="111122223333.dkr.ecr.eu-west-1.amazonaws.com",
    base_region="eu-west-1",
    bucket="artifacts",
)


@pytest.fixture
def ecr():
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("ecr", region_name="eu-west-1", **keys)
    with Stubber(client) as stubber:
        client.stubber = stubber
        yield client


def refused(capfd, recipe, **changes):
    """What a build says that must fail."""
    arguments = recipe.arguments() | changes
    flags = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    with pytest.raises(CommandError, match="docker buildx failed"):
        container_tool.docker(
            "buildx", "build", "--file", recipe.dockerfile, *flags, "--tag", "localhost/refused:1", "."
        )
    said = capfd.readouterr()
    return said.out + said.err


@pytest.mark.parametrize("reference", ["registry/llama-cpp:latest", "registry/llama-cpp", "x@sha256:1234", ""])
def test_a_base_that_is_not_pinned_is_refused(recipe, reference):
    with pytest.raises(CommandError, match="is not pinned: a tag can be moved") as caught:
        replace(recipe, base=reference).arguments()
    assert caught.value.code is ExitCode.USAGE


def test_a_build_of_llama_cpp_that_is_not_in_the_table_is_refused(recipe):
    with pytest.raises(CommandError, match=r"llama\.cpp b1 is not a build that is known; abi\.toml has b10435"):
        replace(recipe, llama_cpp="b1").arguments()


def test_a_base_with_another_build_than_announced_is_refused(capfd, recipe):
    said = refused(capfd, recipe, LLAMA_CPP_BUILD="b10433")
    assert "the base image has llama.cpp b10435, but LLAMA_CPP_BUILD says b10433" in said


def test_a_base_whose_build_is_not_in_the_table_is_refused(capfd, recipe, derived_base):
    base = derived_base("RUN sed -i s/b10435/b9999/ /root/THIRD_PARTY_SOURCE_CODE_URLS")
    said = refused(capfd, recipe, BASE_IMAGE=base, LLAMA_CPP_BUILD="b9999")
    assert "llama.cpp b9999 is not a build that is known" in said


def test_an_interface_that_does_not_go_with_the_base_is_refused(capfd, recipe):
    said = refused(capfd, recipe, INTERFACE="b1")
    assert f"llama.cpp {recipe.llama_cpp} has the interface {recipe.interface}, but INTERFACE says b1" in said


def test_a_base_without_a_library_is_refused(capfd, recipe, derived_base):
    said = refused(capfd, recipe, BASE_IMAGE=derived_base("RUN rm /opt/llama.cpp/bin/libllama.so"))
    assert "the base image has no libllama.so in /opt/llama.cpp/bin" in said


def test_a_base_that_does_not_say_its_build_is_refused(capfd, recipe, derived_base):
    said = refused(capfd, recipe, BASE_IMAGE=derived_base("RUN rm /root/THIRD_PARTY_SOURCE_CODE_URLS"))
    assert "the base image does not say which llama.cpp it has" in said


def test_a_foreign_library_is_refused_when_the_image_is_built(capfd, recipe, derived_base, tmp_path):
    shutil.copytree(llama.LIBRARIES, tmp_path / "foreign")
    base = derived_base("RUN rm -r /opt/llama.cpp/bin\nCOPY foreign /opt/llama.cpp/bin")
    said = refused(capfd, recipe, BASE_IMAGE=base)
    assert "it is another build; put the right library there" in said


def test_a_foreign_library_is_refused_when_a_server_starts(cpu_image, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(abi.MODEL, model / "model.gguf")
    volumes = ["--volume", f"{model}:/opt/ml/model:ro", "--volume", f"{llama.LIBRARIES}:/opt/llama.cpp/bin:ro"]
    words = ["docker", "run", "--rm", "--network", "none", *volumes, cpu_image, "serve"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "it is another build; put the right library there" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_server_that_is_told_of_a_build_that_is_not_in_the_table_does_not_start(cpu_image):
    words = ["docker", "run", "--rm", "--network", "none", "--env", "LLAMA_CPP_BUILD=b9999", cpu_image, "serve"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "llama.cpp b9999 is not a build that is known" in done.stdout


def test_the_library_of_the_base_is_refused_as_that_of_a_checkout(base):
    """The other way round: this environment's declarations, over the base's older library."""
    bundled = builds.find(builds.BUNDLED)
    sizes = llama.struct_sizes(bundled.structs)
    found = abi.inspect(base.libraries)
    with pytest.raises(builds.AbiError, match=r"libllama in .* is version .*: it is another build"):
        abi.check_library(bundled, found, sizes=sizes, libraries=base.libraries)
    blind = replace(bundled, llama_version=None, ggml_version=None)
    if builds.find(base.llama_cpp).interface == bundled.interface:
        abi.check_library(blind, found, sizes=sizes, libraries=base.libraries)
        return
    with pytest.raises(builds.AbiError, match=r"llama_model_params has 72 bytes in the libllama in .* and 80 in the"):
        abi.check_library(blind, found, sizes=sizes, libraries=base.libraries)


COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("line", "commit", "said"),
    [
        ("llama.cpp b10435 https://example.com/", None, ""),
        (f"llama.cpp {COMMIT} https://example.com/", COMMIT, ""),
        (f"llama.cpp {COMMIT} https://example.com/", COMMIT[::-1], f"the base image has llama.cpp {COMMIT}, but"),
        (f"llama.cpp {COMMIT} https://example.com/", None, f'write commit = "{COMMIT}" into its row'),
        ("llama.cpp b10434 https://example.com/", COMMIT, "the base image has llama.cpp b10434, but"),
        ("llama.cpp 0123abc https://example.com/", COMMIT, "does not say which llama.cpp it has"),
    ],
)
def test_a_base_names_its_llama_cpp_by_tag_or_by_commit(tmp_path, monkeypatch, line, commit, said):
    spec = importlib.util.spec_from_file_location("assemble", Path("images/assemble.py").resolve())
    assemble = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(assemble)
    record = tmp_path / "sources"
    record.write_text(f"\nOther 1.0 https://example.com/\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(assemble, "RECORD_OF_SOURCES", record)
    monkeypatch.setattr(assemble, "LIBRARIES", tmp_path)
    if not said:
        assemble.check_build("b10435", commit=commit)
        return
    with pytest.raises(assemble.BaseImageError, match=said):
        assemble.check_build("b10435", commit=commit)


@pytest.mark.parametrize(
    "media_type", ["application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"]
)
def test_an_index_and_a_manifest_of_oci_are_refused(ecr, media_type):
    image_ = {"imageId": {"imageDigest": DIGEST}, "imageManifestMediaType": media_type}
    ecr.stubber.add_response("batch_get_image", {"images": [image_], "failures": []})
    pushed = registry.find_pushed(ecr, TARGET)
    with pytest.raises(CommandError, match=r"SageMaker takes application/vnd\.docker") as caught:
        registry.require_single("decision:cpu-1", pushed.media_type)
    assert caught.value.code is ExitCode.REFUSED
    registry.require_single("decision:cpu-1", container_tool.SINGLE)


def test_an_image_that_is_missing_is_not_found_and_another_failure_is_told(ecr):
    missing = {"failures": [{"failureCode": "ImageNotFound"}], "images": []}
    ecr.stubber.add_response("batch_get_image", missing)
    assert registry.find_pushed(ecr, TARGET) is None
    other = {"failures": [{"failureCode": "KmsError", "failureReason": "no key"}], "images": []}
    ecr.stubber.add_response("batch_get_image", other)
    with pytest.raises(CommandError, match=r"ECR does not show .*decision:cpu-1: no key"):
        registry.find_pushed(ecr, TARGET)


def test_a_repository_with_tags_that_move_is_refused(ecr):
    ecr.stubber.add_response("describe_repositories", {"repositories": [{"imageTagMutability": "MUTABLE"}]})
    with pytest.raises(CommandError, match="tags of the repository decision can be moved"):
        registry.require_immutable(ecr, "decision")
    ecr.stubber.add_response("describe_repositories", {"repositories": [{"imageTagMutability": "IMMUTABLE"}]})
    registry.require_immutable(ecr, "decision")


def scanned(status, **counts):
    findings = [{"name": "CVE-2026-1", "severity": "CRITICAL"}] if counts.get("CRITICAL") else []
    return {
        "imageScanStatus": {"status": status, "description": "said so"},
        "imageScanFindings": {"findingSeverityCounts": counts, "findings": findings},
    }


def clean(ecr, **options):
    options = {"allow_critical": False, "timeout_s": 0.0} | options
    registry.require_clean(ecr, "decision", DIGEST, **options)


def test_critical_findings_are_refused_unless_they_are_accepted(ecr, capsys):
    for _ in range(2):
        ecr.stubber.add_response("describe_image_scan_findings", scanned("COMPLETE", CRITICAL=1, LOW=3))
    with pytest.raises(CommandError, match="has 1 critical findings: CVE-2026-1") as caught:
        clean(ecr)
    assert "steelyard release build --allow-critical" in caught.value.hint
    clean(ecr, allow_critical=True)
    assert "ECR's scan found 1 critical, 3 low" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "said"),
    [("FAILED", "ended as FAILED: said so"), ("IN_PROGRESS", "is IN_PROGRESS after 0 s")],
)
def test_a_scan_that_says_nothing_is_no_clean_scan(ecr, status, said):
    ecr.stubber.add_response("describe_image_scan_findings", scanned(status))
    with pytest.raises(CommandError, match=said):
        clean(ecr)


def test_a_scan_that_never_starts_is_no_clean_scan(ecr):
    ecr.stubber.add_client_error("describe_image_scan_findings", "ScanNotFoundException")
    with pytest.raises(CommandError, match="is NOT_STARTED after 0 s"):
        clean(ecr)


def test_a_list_that_is_there_with_other_content_is_not_replaced():
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    s3 = boto3.client("s3", region_name="eu-west-1", **keys)
    with Stubber(s3) as stubber:
        stubber.add_client_error("put_object", "PreconditionFailed")
        stubber.add_client_error("get_object", "NoSuchKey")
        with pytest.raises(CommandError, match="s3://artifacts/k is there already and lists something else"):
            registry.store(s3, "artifacts", "k", b"{}")


def test_without_docker_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError, match="docker is not installed"):
        container_tool.docker("version")


def test_the_password_of_a_registry_is_not_on_the_command_line(ecr, monkeypatch, tmp_path):
    token = base64.b64encode(b"AWS:secret").decode()
    ecr.stubber.add_response("get_authorization_token", {"authorizationData": [{"authorizationToken": token}]})
    log = tmp_path / "log"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$@" >{log}\ncat >>{log}\n', encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    registry.log_in(ecr, "registry")
    assert log.read_text(encoding="utf-8") == "login --username AWS --password-stdin registry\nsecret"
