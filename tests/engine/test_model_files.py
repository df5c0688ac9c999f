from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from steelyard_runtime.engine import gguf_header, model_files
from steelyard_runtime.engine.model_files import ModelFileError, resolve, sha256


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A complete model, alone in a folder that the test may fill."""
    return Path(shutil.copy(tiny, tmp_path / "model.gguf"))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The three shards of one model."""
    return tiny_models.write_split("llama", tmp_path)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        resolve(path)
    return str(caught.value)


def test_a_file_is_one_model_with_its_facts(model: Path) -> None:
    files = resolve(model)
    assert files.first == model
    assert files.shards == (model,)
    assert len(files.shards) == 1
    assert files.size_bytes == model.stat().st_size
    assert (files.architecture, files.name) == ("llama", "tiny llama")
    assert files.context_length == tiny_models.CONTEXT_LENGTH
    assert files.embedding_length == 64
    assert files.tensors == 21
    assert files.chat_template
    assert files.pooling_type is None
    assert files.ignored == ()


def test_pooling_and_a_missing_template_are_reported(tmp_path: Path) -> None:
    files = resolve(tiny_models.write("llama-embed", tmp_path / "embed.gguf"))
    assert files.architecture == "llama-embed"
    assert files.pooling_type == 1
    assert not files.chat_template


def test_a_template_too_long_to_keep_still_counts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_KEPT_STRING_BYTES", 40)
    assert resolve(model).chat_template


@pytest.mark.parametrize("folder", [".", "one"])
def test_a_folder_is_searched_two_levels_deep(folder: str, tiny: Path, tmp_path: Path) -> None:
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    (place / "notes.txt").write_text("not a model")
    path = Path(shutil.copy(tiny, place / "Model.GGUF"))
    assert resolve(tmp_path).first == path


def test_a_third_level_is_not_searched(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    shutil.copy(tiny, tmp_path / "one" / "two" / "model.gguf")
    assert refusal(tmp_path) == f"{tmp_path} holds no *.gguf file, nor does a folder directly in it"


def test_hidden_files_are_left_out(model: Path) -> None:
    # macOS archives carry such a companion for every file.
    model.with_name("._model.gguf").write_bytes(b"\0\5\x16\7")
    hidden = model.with_name(".cache")
    hidden.mkdir()
    (hidden / "partial.gguf").write_bytes(b"GG")
    assert resolve(model.parent).first == model


def test_links_keep_their_own_names(model: Path, tmp_path: Path) -> None:
    # A hub's cache links readable names to files named by hash; llama.cpp finds shards by the readable ones.
    blob = model.rename(tmp_path / "0123abcd")
    link = tmp_path / "snapshot"
    link.mkdir()
    (link / "model.gguf").symlink_to(blob)
    assert resolve(link).first == link / "model.gguf"


@pytest.mark.parametrize("general_type", ["mmproj", None])
def test_a_projector_beside_the_model_is_passed_over_and_reported(general_type: str | None, model: Path) -> None:
    # "mmproj" sorts after and "a" before the model, so neither order decides.
    for name in ("a.gguf", "mmproj.gguf"):
        tiny_models.write_projector(model.with_name(name), general_type=general_type)
    files = resolve(model.parent)
    assert files.first == model
    assert files.ignored == tuple((model.with_name(n), "a multimodal projector") for n in ("a.gguf", "mmproj.gguf"))


def test_other_companions_are_passed_over_and_reported(model: Path) -> None:
    adapter = tiny_models.write_adapter(model.with_name("lora.gguf"))
    matrix = tiny_models.write_importance_matrix(model.with_name("imatrix.gguf"))
    assert resolve(model.parent).ignored == ((matrix, "an importance matrix"), (adapter, "an adapter (LoRA)"))


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (tiny_models.write_projector, "a multimodal projector"),
        (tiny_models.write_adapter, "an adapter (LoRA)"),
        (tiny_models.write_importance_matrix, "an importance matrix"),
    ],
)
def test_a_companion_alone_is_no_model(write: Callable[[Path], Path], what: str, tmp_path: Path) -> None:
    path = write(tmp_path / "companion.gguf")
    assert refusal(path) == f"{path} is {what}, not a model; name the model's own file"
    assert refusal(tmp_path) == f"{tmp_path} holds no model: {path} is {what}"


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    path = tiny_models.write_vocabulary(tmp_path / "vocabulary.gguf")
    assert refusal(path) == f"{path} holds no tensors; it is a vocabulary only, not a model"
    assert refusal(tmp_path) == refusal(path)


def test_two_models_are_listed_and_none_is_guessed(model: Path) -> None:
    other = Path(shutil.copy(model, model.with_name("other.gguf")))
    message = refusal(model.parent)
    assert f"holds 2 models and which to serve is not guessed: {model}, {other}; name one of these" in message
    assert resolve(other).first == other


def test_many_models_are_not_all_listed(model: Path) -> None:
    for number in range(20):
        shutil.copy(model, model.with_name(f"x{number:02}.gguf"))
    message = refusal(model.parent)
    assert "holds 21 models" in message
    assert "and 13 more" in message


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} holds no *.gguf file, nor does a folder directly in it"


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent.gguf"
    assert refusal(path) == f"{path} does not exist; name a GGUF file or a folder that holds one"
    (tmp_path / "link.gguf").symlink_to(path)
    assert "link.gguf cannot be read: No such file" in refusal(tmp_path)


def test_a_path_that_no_system_accepts_is_refused(tmp_path: Path) -> None:
    assert "File name too long" in refusal(tmp_path / ("x" * 5000))
    assert "does not exist" in refusal(Path("nul\0byte.gguf"))


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_truncated_file_is_refused_with_both_sizes(in_folder: bool, tmp_path: Path) -> None:
    path = tiny_models.write_truncated(tmp_path / "model.gguf")
    expected = gguf_header.read_header(path).expected_bytes
    assert refusal(tmp_path if in_folder else path) == (
        f"{path} is truncated: it has {path.stat().st_size} bytes and its header describes {expected}; fetch it again"
    )


def test_a_broken_file_beside_a_good_one_is_not_overlooked(model: Path) -> None:
    broken = tiny_models.write_truncated(model.with_name("wanted.gguf"))
    assert str(broken) in refusal(model.parent)


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_foreign_file_is_refused(in_folder: bool, tmp_path: Path) -> None:
    path = tiny_models.write_bad_magic(tmp_path / "model.gguf")
    assert refusal(tmp_path if in_folder else path) == (
        f"{path} is not a GGUF file: at byte 0 it has b'ggjt' instead of b'GGUF'"
    )


def test_an_unreadable_file_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permissions do not stop root, who may run these tests, so the refusal is injected where the system would raise it.
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(gguf_header, "without_waiting", refuse)
    assert refusal(model) == f"{model} cannot be read: Permission denied"


def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert refusal(tmp_path) == f"{tmp_path} cannot be searched: Permission denied"


@pytest.mark.parametrize("named", [0, 1, 2, None])
def test_shards_are_one_model_whichever_is_named(named: int | None, shards: list[Path]) -> None:
    assert len(shards) == 3
    files = resolve(shards[0].parent if named is None else shards[named])
    assert files.first == shards[0]
    assert files.shards == tuple(shards)
    assert len(files.shards) == 3
    assert files.tensors == 21
    assert files.architecture == "llama"
    assert files.size_bytes == sum(path.stat().st_size for path in shards)


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(missing: int, in_folder: bool, shards: list[Path]) -> None:
    shards[missing].unlink()
    left = [path for path in shards if path.exists()]
    message = refusal(left[0].parent if in_folder else left[0])
    assert "is one of 3 shards and 1 of them are missing" in message
    assert message.endswith(f": {shards[missing].name}")


def test_a_truncated_shard_is_named(shards: list[Path]) -> None:
    os.truncate(shards[1], shards[1].stat().st_size - 4096)
    assert refusal(shards[0]).startswith(f"{shards[1]} is truncated")


def test_shards_renamed_into_each_others_place_are_refused(shards: list[Path]) -> None:
    spare = shards[0].with_name("spare")
    shards[1].rename(spare)
    shards[2].rename(shards[1])
    spare.rename(shards[2])
    assert "says in its header that it is shard" in refusal(shards[0])


def test_a_shard_without_its_number_in_its_name_is_refused(shards: list[Path]) -> None:
    path = shards[0].rename(shards[0].with_name("model.gguf"))
    assert f"{path} is one of 3 shards, which llama.cpp finds by their names" in refusal(path)


def test_a_shard_of_another_model_is_refused(shards: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    foreign = tiny_models.write_split("qwen35", other, tensors_per_shard=20)
    assert len(foreign) == 3
    shutil.copy(foreign[1], shards[1])
    assert "they are not of one model" in refusal(shards[0])


def test_a_split_model_beside_another_is_two_models(shards: list[Path], tiny: Path) -> None:
    shutil.copy(tiny, shards[0].with_name("whole.gguf"))
    assert "holds 2 models" in refusal(shards[0].parent)
    assert resolve(shards[1]).shards == tuple(shards)


def test_a_header_value_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("llama.context_length", "many")
    writer.add_tensor("w", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert refusal(path) == f"{path} has llama.context_length = 'many', which should be an integer"


def test_a_file_that_names_no_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    assert refusal(path) == f"{path} names no general.architecture, so llama.cpp cannot load it"


def test_the_hash_of_one_file_is_its_own(model: Path) -> None:
    reports: list[tuple[int, int]] = []
    files = resolve(model)
    digest = sha256(files, progress=lambda done, total: reports.append((done, total)))
    assert digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert reports[-1] == (files.size_bytes, files.size_bytes)


def test_the_hash_of_shards_is_the_hash_of_their_digests_in_order(shards: list[Path]) -> None:
    reports: list[tuple[int, int]] = []
    files = resolve(shards[2])
    digest = sha256(files, progress=lambda done, total: reports.append((done, total)))
    each = [hashlib.sha256(path.read_bytes()).hexdigest() for path in shards]
    assert digest == hashlib.sha256("".join(each).encode()).hexdigest()
    assert reports[-1] == (files.size_bytes, files.size_bytes)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})


def test_the_hash_of_a_large_file_is_read_in_chunks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "_CHUNK_BYTES", 1000)
    reports: list[int] = []
    digest = sha256(resolve(model), progress=lambda done, _total: reports.append(done))
    assert digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert len(reports) == -(-model.stat().st_size // 1000)


def test_a_file_that_changes_before_it_is_hashed_is_refused(model: Path) -> None:
    files = resolve(model)
    os.truncate(model, 100)
    with pytest.raises(ModelFileError, match="and now has 100; it changed while it was read"):
        sha256(files)
    model.unlink()
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        sha256(files)
