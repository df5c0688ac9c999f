"""Writes tiny GGUF models with random weights, so that every kind of sequence memory can be tested without a download.

The models speak no language. They load, tokenize any text, and give finite logits that depend on the whole prompt.
The same kind and seed always give the same bytes.
"""

from __future__ import annotations

import logging
import string
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

CONTEXT_LENGTH = 4096
SLIDING_WINDOW = 64
LABELS = tuple(string.ascii_uppercase) + tuple(
    first + second for first in string.ascii_uppercase for second in string.ascii_uppercase
)
CONTROL_TOKENS = ("<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
TURN_TOKENS = ("<|im_start|>", "<think>", "</think>", "[TURN 1]", "[A\u2581B]", "<|a|", "<|a|b|>", "<||>")
"""User-defined, in the files of ``TOKENIZERS``: published files have their turn markers and switches of this type."""
TEXT_TOKENS = ("\n\n", "   ", "<td>", "÷")
"""User-defined, and text."""
CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

_WORDS = ("the", "and", "is", "yes", "no", "true", "false", "state", "question", "answer", "ticket", "refund")
_WIDTH = 64
_FEED_FORWARD = 128
_EPSILON = 1e-6
_SPACE_MARK = "\u2581"


@dataclass(frozen=True)
class _Vocabulary:
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...] = ()
    tokenizer: str = ""

    def id(self, token: str) -> int:
        return self.tokens.index(token)


class _Weights:
    """Draws tensors in a fixed order and hands them to the writer."""

    def __init__(self, writer: gguf.GGUFWriter, rng: np.random.Generator, type_: gguf.GGMLQuantizationType) -> None:
        self._writer = writer
        self._rng = rng
        self._type = type_

    def matrix(self, name: str, *, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """A weight in the model's type, scaled so that a unit input gives outputs of about ``gain``."""
        values = self._normal((outputs, inputs), gain / np.sqrt(inputs))
        self._writer.add_tensor(f"{name}.weight", gguf.quantize(values, self._type), raw_dtype=self._type)

    def norm(self, name: str, *shape: int, gain: float = 1.0) -> None:
        self.vector(f"{name}.weight", gain + self._normal(shape, 0.1))

    def vector(self, name: str, values: Array) -> None:
        """A tensor that llama.cpp wants as 32-bit floats."""
        self._writer.add_tensor(name, values.astype(np.float32))

    def normal(self, name: str, *shape: int, deviation: float) -> None:
        self.vector(name, self._normal(shape, deviation))

    def decay(self, name: str, *shape: int) -> None:
        """Negative rates: some of the state is forgotten at once, some kept for hundreds of tokens."""
        self.vector(name, -np.exp(self._rng.uniform(-4, 1, shape)).astype(np.float32))

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Array:
        return (self._rng.standard_normal(shape) * deviation).astype(np.float32)


@dataclass(frozen=True)
class _Spec:
    architecture: str
    vocabulary: Callable[[], _Vocabulary]
    build: Callable[[gguf.GGUFWriter, _Weights], None]
    weight_type: gguf.GGMLQuantizationType
    tokenizer_pre: str
    add_bos: bool
    template: str | None = None
    tied_output: bool = False
    space_prefix: bool = False
    pooling: gguf.PoolingType | None = None


def write(
    kind: str,
    path: Path,
    *,
    seed: int = 0,
    template: str | None = None,
    named_templates: Mapping[str, str] | None = None,
) -> Path:
    """Write a model of ``kind`` (one of ``KINDS`` or ``TOKENIZERS``) to ``path`` and return the path.

    Args:
        kind: Which model.
        path: Where.
        seed: Of its weights.
        template: The chat template instead of the kind's own; "" for none.
        named_templates: Chat templates beside it, by name.
    """
    _write(kind, path, seed=seed, split_max_tensors=0, template=template, named_templates=named_templates or {})
    return path


def write_split(
    kind: str, folder: Path, *, stem: str = "tiny", tensors_per_shard: int = 8, seed: int = 0
) -> list[Path]:
    """Write a model of ``kind`` as shards ``STEM-00001-of-0000N.gguf`` and return their paths in order."""
    _write(kind, folder / f"{stem}.gguf", seed=seed, split_max_tensors=tensors_per_shard)
    return sorted(folder.glob(f"{stem}-*-of-*.gguf"))


def write_truncated(path: Path, *, kind: str = "llama", missing_bytes: int = 1000) -> Path:
    """Write a model whose last bytes are missing."""
    whole = write(kind, path).read_bytes()
    path.write_bytes(whole[:-missing_bytes])
    return path


def write_bad_magic(path: Path) -> Path:
    """Write a model whose first four bytes are another format's."""
    path.write_bytes(b"ggjt" + write("llama", path).read_bytes()[4:])
    return path


def write_projector(path: Path, *, general_type: str | None = gguf.GGUFType.MMPROJ) -> Path:
    """Write a multimodal projector, as it lies beside vision models; older ones have no ``general.type``."""
    return _write_companion(path, "clip", general_type)


def write_adapter(path: Path) -> Path:
    """Write a LoRA adapter for a llama model."""
    return _write_companion(path, "llama", gguf.GGUFType.ADAPTER)


def write_importance_matrix(path: Path) -> Path:
    """Write an importance matrix, as quantizers publish it beside their models."""
    return _write_companion(path, "llama", gguf.GGUFType.IMATRIX)


def write_vocabulary(path: Path) -> Path:
    """Write a file with a tokenizer and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_vocabulary(writer, _SPECS["llama"])
    _finish(writer)
    return path


def _write(
    kind: str,
    path: Path,
    *,
    seed: int,
    split_max_tensors: int,
    template: str | None = None,
    named_templates: Mapping[str, str] = MappingProxyType({}),
) -> None:
    spec = (_SPECS | _TOKENIZERS)[kind]
    spec = spec if template is None else replace(spec, template=template or None)
    writer = gguf.GGUFWriter(path, spec.architecture, split_max_tensors=split_max_tensors)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(f"tiny {kind}")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(_WIDTH)
    if spec.pooling is not None:
        writer.add_pooling_type(spec.pooling)
    for name, source in named_templates.items():
        writer.add_string(f"tokenizer.chat_template.{name}", source)
    vocabulary = _add_vocabulary(writer, spec)
    rng = np.random.default_rng((seed, zlib.crc32(kind.encode())))
    weights = _Weights(writer, rng, spec.weight_type)
    weights.matrix("token_embd", outputs=len(vocabulary.tokens), inputs=_WIDTH, gain=2.0)
    weights.norm("output_norm", _WIDTH)
    if not spec.tied_output:
        weights.matrix("output", outputs=len(vocabulary.tokens), inputs=_WIDTH, gain=2.0)
    spec.build(writer, weights)
    _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_companion(path: Path, architecture: str, general_type: str | None) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    if general_type is not None:
        writer.add_type(general_type)
    writer.add_tensor("some.weight", np.ones((4, 32), dtype=np.float32))
    _finish(writer)
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, spec: _Spec) -> _Vocabulary:
    vocabulary = spec.vocabulary()
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_pre(spec.tokenizer_pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    if vocabulary.tokenizer:
        _add_tokenizer(writer, vocabulary)
    elif vocabulary.merges:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_merges(list(vocabulary.merges))
        writer.add_bos_token_id(vocabulary.id("<|endoftext|>"))
        writer.add_pad_token_id(vocabulary.id("<|endoftext|>"))
    else:
        writer.add_tokenizer_model("llama")
        # Earlier tokens merge first, so a label beats the letters it is made of.
        writer.add_token_scores([-float(index) for index in range(len(vocabulary.tokens))])
        writer.add_unk_token_id(vocabulary.id("<unk>"))
        writer.add_bos_token_id(vocabulary.id("<s>"))
        writer.add_add_space_prefix(spec.space_prefix)
    writer.add_eos_token_id(vocabulary.id("<|im_end|>" if spec.template else "</s>"))
    writer.add_add_bos_token(spec.add_bos)
    if spec.template:
        writer.add_chat_template(spec.template)
    return vocabulary


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: _Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.tokenizer)
    writer.add_token_scores([-1.0 - 0.001 * index for index in range(len(vocabulary.tokens))])
    if vocabulary.merges:
        writer.add_token_merges(list(vocabulary.merges))
    for name, token in (("bos", "<s>"), ("unk", "<unk>"), ("pad", "<|endoftext|>"), ("sep", "<|endoftext|>")):
        getattr(writer, f"add_{name}_token_id")(vocabulary.id(token))
    if vocabulary.tokenizer in ("llama", "t5"):
        writer.add_add_space_prefix(False)
    if vocabulary.tokenizer == "t5":
        writer.add_remove_extra_whitespaces(True)


def _prefixes(word: str) -> list[str]:
    return [word[:length] for length in range(2, len(word) + 1)]


def _composed(space: str) -> list[str]:
    """All tokens of more than one character, each the sum of two earlier ones, in the order in which they merge."""
    pairs = [label for label in LABELS if len(label) == 2]
    words = [prefix for word in _WORDS for prefix in _prefixes(space + word)]
    return list(dict.fromkeys([*pairs, *(space + label for label in LABELS), *words]))


def _spm_vocabulary() -> _Vocabulary:
    """SentencePiece: byte tokens for whatever the characters do not cover."""
    control = ["<unk>", *CONTROL_TOKENS]
    raw_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*_composed(_SPACE_MARK), _SPACE_MARK, *string.printable.strip(), "é", "漢"]
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    types += [gguf.TokenType.BYTE] * len(raw_bytes) + [gguf.TokenType.NORMAL] * len(pieces)
    return _Vocabulary((*control, *raw_bytes, *pieces), tuple(map(int, types)))


def _bpe_vocabulary() -> _Vocabulary:
    """Byte-level BPE as GPT-2 has it: one printable character for each byte, and merges."""
    alphabet = _byte_characters()
    space = alphabet[ord(" ")]
    composed = _composed(space)
    # A label with a space is made from the whole label; a word grows by one letter.
    merges = [f"{token[0]} {token[1:]}" if token[1:] in LABELS else f"{token[:-1]} {token[-1]}" for token in composed]
    tokens = (*alphabet, *composed, *CONTROL_TOKENS)
    normal = len(alphabet) + len(composed)
    types = [gguf.TokenType.NORMAL] * normal + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    return _Vocabulary(tokens, tuple(map(int, types)), tuple(merges))


def _byte_characters() -> list[str]:
    """GPT-2's spelling of each byte: itself where it prints, else the next character from U+0100."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in prints else next(others) for byte in range(256)]


def _tokenizer_vocabulary(tokenizer: str) -> _Vocabulary:
    """Special tokens that can be put together from tokens of text, as far as the tokenizer puts tokens together.

    Each beginning of each special token is a token, and so is that of a byte's and of the unknown token's spelling.
    """
    unknown, user = ["<unk>"], [*TURN_TOKENS, *TEXT_TOKENS]
    control = [token for token in CONTROL_TOKENS if token not in TURN_TOKENS]
    raw_bytes = [] if tokenizer in ("gpt2", "rwkv", "t5", "bert") else [f"<0x{byte:02X}>" for byte in range(256)]
    spelled = [*control, *TURN_TOKENS, *unknown, *raw_bytes[65:66]]
    beginnings = [part.replace(" ", _SPACE_MARK) for token in spelled for part in _prefixes(token)[:-1]]
    characters = [*string.printable.strip(), _SPACE_MARK, "é", "漢"]
    normal = [*beginnings, *characters, *LABELS[26:]]
    if tokenizer == "gpt2":
        normal = [*_byte_characters(), *beginnings, *LABELS[26:]]
    elif tokenizer == "rwkv":
        normal = [*(f"\\x{byte:02x}" for byte in range(256)), *beginnings, *LABELS[26:]]
    elif tokenizer == "bert":
        normal += [_SPACE_MARK + character for character in characters]
    special = [*unknown, *control, *user, "<unused0>"]
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * len(control)
    types += [gguf.TokenType.USER_DEFINED] * len(user) + [gguf.TokenType.UNUSED]
    normal = [token for token in dict.fromkeys(normal) if token not in special]
    merges = [f"{token[:-1]} {token[-1]}" for token in [*normal, *spelled] if len(token) > 1 and " " not in token]
    return _Vocabulary(
        (*special, *raw_bytes, *normal),
        tuple(map(int, types + [gguf.TokenType.BYTE] * len(raw_bytes) + [gguf.TokenType.NORMAL] * len(normal))),
        tuple(merges) if tokenizer in ("gpt2", "gemma4") else (),
        tokenizer,
    )


def _attention(
    weights: _Weights, block: str, *, heads: int, heads_kv: int, head_width: int, gated: bool = False
) -> None:
    weights.matrix(f"{block}.attn_q", outputs=heads * head_width * (2 if gated else 1), inputs=_WIDTH, gain=2.0)
    weights.matrix(f"{block}.attn_k", outputs=heads_kv * head_width, inputs=_WIDTH, gain=2.0)
    weights.matrix(f"{block}.attn_v", outputs=heads_kv * head_width, inputs=_WIDTH, gain=4.0)
    weights.matrix(f"{block}.attn_output", outputs=_WIDTH, inputs=heads * head_width, gain=2.0)


def _feed_forward(weights: _Weights, block: str) -> None:
    weights.matrix(f"{block}.ffn_gate", outputs=_FEED_FORWARD, inputs=_WIDTH)
    weights.matrix(f"{block}.ffn_up", outputs=_FEED_FORWARD, inputs=_WIDTH)
    weights.matrix(f"{block}.ffn_down", outputs=_WIDTH, inputs=_FEED_FORWARD)


def _build_llama(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Dense: full attention in every layer."""
    layers, heads, heads_kv, head_width = 2, 4, 2, 16
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_rope_dimension_count(head_width)
    writer.add_layer_norm_rms_eps(_EPSILON)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        _attention(weights, block, heads=heads, heads_kv=heads_kv, head_width=head_width)
        weights.norm(f"{block}.ffn_norm", _WIDTH)
        _feed_forward(weights, block)


def _build_gemma3(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Sliding window in five layers of six, full attention in the sixth."""
    layers, heads, heads_kv, head_width = 6, 2, 1, 32
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_layer_norm_rms_eps(_EPSILON)
    writer.add_sliding_window(SLIDING_WINDOW)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        _attention(weights, block, heads=heads, heads_kv=heads_kv, head_width=head_width)
        weights.norm(f"{block}.attn_q_norm", head_width)
        weights.norm(f"{block}.attn_k_norm", head_width)
        weights.norm(f"{block}.post_attention_norm", _WIDTH, gain=2.0)
        weights.norm(f"{block}.ffn_norm", _WIDTH)
        _feed_forward(weights, block)
        weights.norm(f"{block}.post_ffw_norm", _WIDTH, gain=2.0)


def _build_qwen35(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Hybrid: three layers of gated delta net (a recurrent state), then one of gated full attention."""
    layers, interval, heads, heads_kv, head_width = 4, 4, 2, 1, 32
    kernel, state, key_heads, value_heads = 4, 32, 2, 4
    keys, values = key_heads * state, value_heads * state
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width // 2)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_layer_norm_rms_eps(_EPSILON)
    writer.add_full_attention_interval(interval)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(values)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_group_count(key_heads)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        if (layer + 1) % interval == 0:
            _attention(weights, block, heads=heads, heads_kv=heads_kv, head_width=head_width, gated=True)
            weights.norm(f"{block}.attn_q_norm", head_width)
            weights.norm(f"{block}.attn_k_norm", head_width)
        else:
            weights.matrix(f"{block}.attn_qkv", outputs=2 * keys + values, inputs=_WIDTH, gain=2.0)
            weights.matrix(f"{block}.attn_gate", outputs=values, inputs=_WIDTH)
            weights.normal(f"{block}.ssm_conv1d.weight", 2 * keys + values, kernel, deviation=0.5)
            weights.normal(f"{block}.ssm_dt.bias", value_heads, deviation=0.5)
            weights.decay(f"{block}.ssm_a", value_heads)
            weights.matrix(f"{block}.ssm_beta", outputs=value_heads, inputs=_WIDTH)
            weights.matrix(f"{block}.ssm_alpha", outputs=value_heads, inputs=_WIDTH)
            weights.norm(f"{block}.ssm_norm", state)
            weights.matrix(f"{block}.ssm_out", outputs=_WIDTH, inputs=values, gain=2.0)
        weights.norm(f"{block}.post_attention_norm", _WIDTH)
        _feed_forward(weights, block)


def _build_mamba2(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    """Recurrent: a fixed-size state and no attention at all."""
    layers, kernel, state, groups, heads = 3, 4, 16, 2, 4
    inner = 2 * _WIDTH
    convolved = inner + 2 * groups * state
    writer.add_block_count(layers)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(_EPSILON)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", _WIDTH)
        weights.matrix(f"{block}.ssm_in", outputs=inner + convolved + heads, inputs=_WIDTH, gain=2.0)
        weights.normal(f"{block}.ssm_conv1d.weight", convolved, kernel, deviation=0.5)
        weights.normal(f"{block}.ssm_conv1d.bias", convolved, deviation=0.1)
        weights.normal(f"{block}.ssm_dt.bias", heads, deviation=0.5)
        weights.decay(f"{block}.ssm_a", heads, 1)
        weights.normal(f"{block}.ssm_d", heads, 1, deviation=1.0)
        weights.norm(f"{block}.ssm_norm", groups, inner // groups)
        weights.matrix(f"{block}.ssm_out", outputs=_WIDTH, inputs=inner, gain=2.0)


_TYPES = gguf.GGMLQuantizationType
# Different weight types on purpose: llama.cpp multiplies each with other code.
_SPECS = {
    "llama": _Spec("llama", _spm_vocabulary, _build_llama, _TYPES.Q4_0, "default", add_bos=True, template=CHATML),
    "llama-space-prefix": _Spec(
        "llama", _spm_vocabulary, _build_llama, _TYPES.Q8_0, "default", add_bos=True, template=CHATML, space_prefix=True
    ),
    "gemma3": _Spec("gemma3", _spm_vocabulary, _build_gemma3, _TYPES.F16, "default", add_bos=True, tied_output=True),
    "qwen35": _Spec("qwen35", _bpe_vocabulary, _build_qwen35, _TYPES.Q8_0, "qwen35", add_bos=False, template=CHATML),
    "mamba2": _Spec("mamba2", _bpe_vocabulary, _build_mamba2, _TYPES.F32, "gpt-2", add_bos=False),
    # Gives pooled embeddings and logits.
    "llama-pooling": _Spec(
        "llama", _spm_vocabulary, _build_llama, _TYPES.F16, "default", add_bos=True, pooling=gguf.PoolingType.MEAN
    ),
    # Gives embeddings only: it attends in both directions, and its logits are all zero.
    "llama-embed": _Spec(
        "llama-embed", _spm_vocabulary, _build_llama, _TYPES.F16, "default", add_bos=True, pooling=gguf.PoolingType.MEAN
    ),
}
KINDS = tuple(_SPECS)
# One model for each of llama.cpp's tokenizers.
_TOKENIZERS = {
    f"tokenizer-{name}": _Spec(
        "llama",
        partial(_tokenizer_vocabulary, name),
        _build_llama,
        _TYPES.F16,
        "default",
        add_bos=True,
        template=CHATML,
    )
    for name in ("llama", "gpt2", "gemma4", "bert", "t5", "rwkv", "plamo2")
}
TOKENIZERS = tuple(_TOKENIZERS)
EMBEDDING_KINDS = ("llama-pooling", "llama-embed")
SCORING_KINDS = tuple(kind for kind in KINDS if kind != "llama-embed")

logging.getLogger("gguf").setLevel(logging.WARNING)
