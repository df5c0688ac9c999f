"""What a GGUF file says of itself, read and compared with the catalogue; hostile files end in a sentence."""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct

import gguf
import hypothesis
import pytest
from hypothesis import strategies as st

import tiny_models
from model_sources import hub_entry, tiny_model
from steelyard.models import storage
from steelyard.models.catalogue import find
from steelyard.models.claims import check_claims
from steelyard.models.gguf_metadata import read_facts, tensor_type_of
from steelyard.models.template_review import review
from steelyard_base.exit_codes import CommandError, ExitCode

CONTENT = tiny_model()


@pytest.fixture
def pulled(cache):
    """Files on this machine as a pull leaves them, and the entry that pins them."""

    def place(files, **claims):
        entry = hub_entry(files, claims=claims)
        for name, data in files.items():
            path = storage.model_folder(entry) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return entry

    return place


def test_the_embedded_model_is_what_the_catalogue_claims(gemma):
    facts = read_facts(gemma)
    claims = find("gemma-3-270m").claims
    assert facts.architecture == claims.architecture == "gemma3"
    assert facts.quantization == claims.quantization == "Q4_K_M"
    assert facts.context_length == claims.context_length == 32768
    assert facts.tokenizer == claims.tokenizer == "llama/default"
    assert facts.chat_template_sha256 == claims.chat_template_sha256 == "none"
    assert facts.vocabulary == 262144
    assert facts.tensor_types["Q4_K"] == 27


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_both_readers_agree(kind, tmp_path):
    """Stepping over arrays, ours reads what the package reads with them."""
    path = tiny_models.write(kind, tmp_path / "tiny.gguf")
    plain = gguf.GGUFReader(path)
    facts = read_facts(path)
    assert facts.architecture == plain.fields["general.architecture"].contents()
    assert facts.vocabulary == len(plain.fields["tokenizer.ggml.tokens"].data)
    assert sum(facts.tensor_types.values()) == len(plain.tensors)
    template = plain.fields.get("tokenizer.chat_template")
    assert facts.chat_template == (template.contents() if template else None)


def test_a_template_too_long_for_a_server_is_still_hashed(tmp_path):
    template = "{{ messages }}" * 10_000
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_chat_template(template)
    tiny_models._finish(writer)
    facts = read_facts(tmp_path / "x.gguf")
    assert facts.chat_template_sha256 == hashlib.sha256(template.encode()).hexdigest()


def test_right_claims_are_accepted(pulled):
    facts, warnings = check_claims(
        pulled(
            {"tiny.gguf": CONTENT},
            architecture="qwen35",
            context_length=4096,
            tokenizer=read_facts_of(CONTENT).tokenizer,
            chat_template_sha256=read_facts_of(CONTENT).chat_template_sha256,
        )
    )
    assert facts.architecture == "qwen35"
    assert warnings == []


def read_facts_of(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(data)
        return read_facts(path)


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ({"architecture": "llama"}, "architecture is 'qwen35' in the file, and 'llama' is claimed"),
        ({"quantization": "Q4_K_M"}, "quantization is None in the file, and 'Q4_K_M' is claimed"),
        ({"context_length": 8192}, "context_length is 4096 in the file, and 8192 is claimed"),
        ({"tokenizer": "llama/default"}, "tokenizer is '.*' in the file, and 'llama/default' is claimed"),
        (
            {"chat_template_sha256": "0" * 64},
            "chat_template_sha256 is '0507b146.*' in the file, and '0{64}' is claimed",
        ),
        ({"quantization": "Q4_K_M"}, "Q4_K_M is claimed, and none of the tensors is Q4_K"),
    ],
)
def test_a_wrong_claim_is_named_with_both_values(pulled, claim, told):
    with pytest.raises(CommandError, match=told) as caught:
        check_claims(pulled({"tiny.gguf": CONTENT}, **claim))
    assert caught.value.code is ExitCode.MODEL


def test_two_models_in_one_folder_are_ambiguous(pulled):
    entry = pulled({"tiny.gguf": CONTENT})
    (storage.model_folder(entry) / "other.gguf").write_bytes(CONTENT)
    with pytest.raises(CommandError, match=r"holds other\.gguf, which is no file of tiny"):
        check_claims(entry)


def split(tmp_path):
    return {path.name: path.read_bytes() for path in tiny_models.write_split("llama", tmp_path)}


def test_a_whole_set_of_shards(pulled, tmp_path):
    facts, _ = check_claims(pulled(split(tmp_path), architecture="llama"))
    assert facts.path.name == "tiny-00001-of-00003.gguf"


def test_a_missing_shard_is_named(pulled, tmp_path):
    entry = pulled(split(tmp_path))
    (storage.model_folder(entry) / "tiny-00003-of-00003.gguf").unlink()
    with pytest.raises(CommandError, match=r"3 shards and 1 of them are missing in .*: tiny-00003-of-00003\.gguf"):
        check_claims(entry)


def test_a_shard_of_another_model_is_found(pulled, tmp_path):
    files = split(tmp_path)
    name = "tiny-00002-of-00003.gguf"
    entry = pulled(files)
    (storage.model_folder(entry) / name).write_bytes(files["tiny-00003-of-00003.gguf"])
    with pytest.raises(CommandError, match="says in its header that it is shard 3 of 3"):
        check_claims(entry)


def test_a_projector_in_the_place_of_the_weights(pulled, tmp_path):
    projector = tiny_models.write_projector(tmp_path / "x.gguf").read_bytes()
    with pytest.raises(CommandError, match=r"holds no model: .* is a multimodal projector"):
        check_claims(pulled({"tiny.gguf": projector}))
    check_claims(pulled({"tiny.gguf": CONTENT, "mmproj.gguf": projector}))
    with pytest.raises(CommandError, match="2 models"):
        check_claims(pulled({"tiny.gguf": CONTENT, "mmproj.gguf": CONTENT}))


def test_a_file_without_a_tokenizer(pulled, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    tiny_models._finish(writer)
    with pytest.raises(CommandError, match="carries no tokenizer"):
        check_claims(pulled({"tiny.gguf": (tmp_path / "x.gguf").read_bytes()}))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b"GGUF", "broken GGUF header at byte 4"),
        (b"<!doctype html>", "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (CONTENT[:-1000], "is truncated"),
        (CONTENT[:3000], "."),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors are declared"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QQ", 1 << 62, 0), "declares"),
    ],
)
def test_a_broken_file_is_a_sentence(tmp_path, data, told):
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(CommandError, match=told) as caught:
        read_facts(tmp_path / "x.gguf")
    assert caught.value.code is ExitCode.MODEL


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.integers(0, 40_000), st.binary(min_size=1, max_size=8))
def test_no_damage_lets_a_traceback_out(tmp_path_factory, at, damage):
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(CONTENT[:at] + damage + CONTENT[at + len(damage) :])
    with contextlib.suppress(CommandError):
        read_facts(path)


@pytest.mark.parametrize(
    ("quantization", "type_"),
    [("Q4_K_M", "Q4_K"), ("Q3_K_XS", "Q3_K"), ("IQ2_XXS", "IQ2_XXS"), ("Q8_0", "Q8_0"), ("F16", "F16")],
)
def test_the_type_of_a_quantization(quantization, type_):
    known = dict.fromkeys(gguf.GGMLQuantizationType.__members__, 1)
    assert tensor_type_of(quantization, known) == type_


HARMLESS = [
    tiny_models.CHATML,
    "{% macro turn(m) %}{{ m.content | trim }}{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ m['role'].upper() }}{% endfor %}",
    "{{ raise_exception('no') }}{{ strftime_now('%Y') }}{% generation %}{{ x | tojson }}{% endgeneration %}",
    "",
    None,
]


@pytest.mark.parametrize("template", HARMLESS)
def test_what_chat_templates_do_is_no_warning(template):
    assert review(template) == []


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ ''.__class__.__mro__ }}", "reads the attribute __class__"),
        ("{{ ''['__class__'] }}", "reads the attribute __class__"),
        ("{{ '' | attr('__class__') }}", "uses the filter attr"),
        ("{% set name = '__globals__' %}", "names __globals__"),
        ("\n\n{% include '/etc/passwd' %}", "line 3, reads another template"),
        ("{% import 'x' as x %}", "reads another template"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", r"calls \.popen\(\)"),
        ("{{ lipsum() }}", r"calls lipsum\(\)"),
        ("{{ messages[0]() }}", "calls the result of an expression"),
        ("{% if false %}{{ x.mro() }}{% endif %}", r"calls \.mro\(\)"),
        ("{% for %}", "cannot be parsed"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "cannot be parsed"),
    ],
)
def test_a_template_that_could_execute_something_is_warned_of(template, told):
    assert any(re.search(told, warning) for warning in review(template)), review(template)


def test_the_warning_reaches_whoever_checks_the_model(pulled, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_chat_template("{{ ''.__class__ }}")
    writer.add_token_list(["a", "b"])
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    tiny_models._finish(writer)
    _, warnings = check_claims(pulled({"tiny.gguf": (tmp_path / "x.gguf").read_bytes()}))
    assert warnings
    assert "tiny.gguf: the chat template, line 1, reads the attribute __class__" in warnings[0]
