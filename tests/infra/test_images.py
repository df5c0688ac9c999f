"""Images and models: pinned, from where SageMaker pulls, and each refusal with its sentence."""

from __future__ import annotations

import doctest

import pytest
from botocore.loaders import Loader

from steelyard_constructs import images
from steelyard_constructs.hardware import Architecture, Hardware
from steelyard_constructs.images import ImageReference, check_image
from steelyard_constructs.model_artifact import HubModel, ModelArtifact, timeout, volume_gib
from steelyard_constructs.refusal import Refused

DIGEST = "sha256:" + "a1" * 32
REGISTRY = "111122223333.dkr.ecr.eu-west-1.amazonaws.com"
GB = 10**9

X86 = ImageReference("mine", DIGEST)
ARM = ImageReference("mine", DIGEST, architecture=Architecture.ARM64)
CUDA = ImageReference("mine", DIGEST, cuda="13.0")


def test_the_examples_in_the_docstrings_are_right():
    assert doctest.testmod(images) == (0, 1)


def test_a_pinned_uri_is_taken_apart():
    assert ImageReference.parse(f"{REGISTRY}/team/mine@{DIGEST}", cuda="13.0") == ImageReference(
        repository="team/mine", digest=DIGEST, cuda="13.0", account="111122223333", region="eu-west-1"
    )


PARTITIONS = {each["partition"]: each["dnsSuffix"] for each in Loader().load_data("endpoints")["partitions"]}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_registry_of_every_partition_is_one(partition):
    uri = f"111122223333.dkr.ecr.xx-west-1.{PARTITIONS[partition]}/mine@{DIGEST}"
    assert ImageReference.parse(uri).region == "xx-west-1"
    with pytest.raises(Refused, match="is not pinned in private ECR"):
        ImageReference.parse(uri.replace("/mine", ".example.com/mine"))


def test_the_published_container_is_left_to_the_region_of_the_endpoint():
    image = ImageReference.dlc(digest=DIGEST)
    assert (image.repository, image.account, image.region, image.published) == ("llama-cpp", None, None, True)


@pytest.mark.parametrize(("image", "hardware"), [(X86, Hardware.CPU), (ARM, Hardware.GRAVITON), (CUDA, Hardware.CUDA)])
def test_an_image_fits_the_hardware_that_it_was_built_for(image, hardware):
    check_image(image, hardware)


REFUSED = {
    "a tag": (
        lambda: ImageReference.parse(f"{REGISTRY}/mine:latest"),
        [f"'{REGISTRY}/mine:latest' is not pinned", "a tag can be moved", "@sha256:DIGEST"],
    ),
    "a tag and a digest": (
        lambda: ImageReference.parse(f"{REGISTRY}/mine:v1@{DIGEST}"),
        ["/mine:v1@sha256:", "is not pinned"],
    ),
    "a tag for a digest": (
        lambda: ImageReference("mine", "v1.2.3"),
        ["image 'mine' is named by 'v1.2.3'", "a tag can be moved", "64 hexadecimal digits"],
    ),
    "a version for a build of llama.cpp": (
        lambda: ImageReference("mine", DIGEST, llama_cpp="0.4.1"),
        ["has llama.cpp '0.4.1'", "such as b10433"],
    ),
    "a digest cut short": (lambda: ImageReference("mine", DIGEST[:-1]), ["which is not a digest"]),
    "a digest in capitals": (lambda: ImageReference("mine", DIGEST.upper()), ["which is not a digest"]),
    "the public gallery": (
        lambda: ImageReference.parse(f"public.ecr.aws/deep-learning-containers/llama-cpp@{DIGEST}"),
        ["'public.ecr.aws/deep-learning-containers/llama-cpp@", "SageMaker does not pull", "ImageReference.dlc(...)"],
    ),
    "the public gallery as a repository": (
        lambda: ImageReference("public.ecr.aws/deep-learning-containers/llama-cpp", DIGEST),
        ["is in the public gallery", "copy it to a private repository"],
    ),
    "another registry": (
        lambda: ImageReference.parse(f"ghcr.io/ggml-org/llama.cpp@{DIGEST}"),
        ["'ghcr.io/ggml-org/llama.cpp@", "SageMaker pulls from ECR only"],
    ),
    "a repository with a tag behind": (
        lambda: ImageReference("mine:v1", DIGEST),
        ["'mine:v1' is not a name that ECR takes", "no tag behind"],
    ),
    "a repository in capitals": (lambda: ImageReference("Mine", DIGEST), ["'Mine' is not a name that ECR takes"]),
    "an account of eleven digits": (
        lambda: ImageReference("mine", DIGEST, account="1" * 11),
        ["of account '11111111111'", "12 digits"],
    ),
    "a CUDA version without a minor": (
        lambda: ImageReference("mine", DIGEST, cuda="13"),
        ["has CUDA '13'", "MAJOR.MINOR"],
    ),
    "x86 on Graviton": (
        lambda: check_image(X86, Hardware.GRAVITON),
        ["'mine' is built for x86_64", "'graviton' instances are arm64", "use an image built for the latter"],
    ),
    "Arm on x86": (
        lambda: check_image(ARM, Hardware.CPU),
        ["'mine' is built for arm64", "'cpu' instances are x86_64"],
    ),
    "no CUDA on a GPU": (lambda: check_image(X86, Hardware.CUDA), ["'mine' has no CUDA", "use a CUDA image"]),
    "CUDA without a GPU": (
        lambda: check_image(CUDA, Hardware.CPU),
        ["'mine' has CUDA 13.0", "a 'cpu' endpoint has no GPU", "use the CPU image"],
    ),
    "a model that is neither prefix nor archive": (
        lambda: ModelArtifact("models", "qwen", GB),
        ["model key 'qwen' is neither", "end it in '/'", "'.tar.gz'"],
    ),
    "an absolute prefix": (lambda: ModelArtifact("models", "/qwen/", GB), ["'/qwen/' has an empty part"]),
    "an empty part": (lambda: ModelArtifact("models", "qwen//x/", GB), ["'qwen//x/' has an empty part"]),
    "the whole bucket": (lambda: ModelArtifact("models", "/", GB), ["'/' has an empty part"]),
    "a star, which a policy reads as anything": (lambda: ModelArtifact("models", "q*/", GB), ["'q*/' has a '*'"]),
    "a variable, which a policy fills in": (
        lambda: ModelArtifact("models", "${aws:username}/", GB),
        ["a character that a policy cannot name exactly"],
    ),
    "a model without bytes": (lambda: ModelArtifact("models", "q/", 0), ["has 0 bytes", "give the size"]),
    "a file that is no GGUF": (
        lambda: ModelArtifact("models", "q/", GB, file="model.bin"),
        ["'model.bin' is not a GGUF file", "such as model.gguf"],
    ),
    "a file outside the prefix": (lambda: ModelArtifact("models", "q/", GB, file="../a.gguf"), ["'../a.gguf'"]),
    "a hub repository without an owner": (
        lambda: HubModel("qwen", "a.gguf", GB),
        ["'qwen' is not written as OWNER/NAME"],
    ),
    "a hub file that is no GGUF": (lambda: HubModel("a/b", "model", GB), ["'model' is not a GGUF file"]),
    "a hub file without bytes": (lambda: HubModel("a/b", "a.gguf", 0), ["'a.gguf' has 0 bytes", "give its size"]),
    "a timeout below what SageMaker takes": (
        lambda: timeout("startup_timeout_s", given=59, derived=0),
        ["startup_timeout_s of 59 s is outside the 60 to 3600 s", "set it within"],
    ),
    "a timeout above": (lambda: timeout("startup_timeout_s", given=3601, derived=0), ["of 3601 s is outside"]),
    "a model too large to load in time": (
        lambda: timeout("startup_timeout_s", given=None, derived=ModelArtifact("m", "k/", 200 * GB).startup_seconds()),
        ["startup_timeout_s of 5220 s, derived from the model's size,", "use a smaller model"],
    ),
    "a model too large for a volume": (
        lambda: volume_gib(ModelArtifact("m", "k/", 200 * GB)),
        ["200000000000 bytes needs a volume of 559 GiB", "at most 512", "instance type with its own disks"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_value_and_what_to_do(case):
    call, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        call()
    for part in sentence:
        assert part in str(refusal.value)


def test_a_prefix_and_an_archive_are_told_apart():
    prefix = ModelArtifact("models", "qwen/0123/", GB)
    archive = ModelArtifact("models", "qwen/0123/model.tar.gz", GB)
    assert (prefix.compressed, prefix.uri) == (False, "s3://models/qwen/0123/")
    assert (archive.compressed, archive.uri) == (True, "s3://models/qwen/0123/model.tar.gz")


@pytest.mark.parametrize(
    ("source", "download", "startup"),
    [
        # What a healthy container does not use costs nothing, so there is a least.
        (ModelArtifact("m", "k/", 1), 300, 600),
        (ModelArtifact("m", "k/", 24 * GB), 120 + 480, 180 + 600),
        (ModelArtifact("m", "k.tar.gz", 24 * GB), 120 + 480 + 480, 180 + 600),
        (HubModel("a/b", "a.gguf", 1), 60, 600),
        (HubModel("a/b", "a.gguf", 8 * GB), 60, 180 + 400 + 100),
    ],
)
def test_timeouts_follow_the_models_size(source, download, startup):
    assert (source.download_seconds(), source.startup_seconds()) == (download, startup)


@pytest.mark.parametrize(
    ("given", "derived", "seconds"), [(None, 121, 180), (None, 120, 120), (None, 60, 60), (90, 500, 90)]
)
def test_a_timeout_is_what_was_set_or_whole_minutes(given, derived, seconds):
    assert timeout("startup_timeout_s", given=given, derived=derived) == seconds


def test_the_volume_holds_the_model_three_times():
    assert volume_gib(ModelArtifact("m", "k/", GB)) == 30
    assert volume_gib(ModelArtifact("m", "k/", 20 * 2**30)) == 60
    assert volume_gib(ModelArtifact("m", "k/", 20 * 2**30 + 1)) == 61
