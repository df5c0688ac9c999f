"""Write the model that proves a libllama, and the logits that it has to give: engine/abi.gguf, engine/abi-logits.json.

The model is llama's architecture with two layers and fixed random weights in 32-bit floats. The logits are not
llama.cpp's: they are computed here, with numpy in 64-bit floats, so that they say what is right and not what some build
did. Both files are functions of this one, to the byte; a test runs it and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).resolve().parent.parent / "runtime" / "steelyard_runtime" / "engine"
Array = npt.NDArray[Any]

TOKENS = [1, 7, 250, 42, 42, 100, 3, 199, 12, 64]
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
LAYERS, WIDTH, HEADS, FEED_FORWARD, CONTEXT = 2, 32, 4, 64, 256
EPSILON, ROPE_BASE = 1e-5, 10_000.0
SEED = 10433


def main() -> None:
    """Write both files into the folder that is given, by default the runtime's."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    weights = draw()
    write_model(folder / "abi.gguf", weights)
    answer = {"tokens": TOKENS, "logits": [round(float(value), 6) for value in logits(weights, TOKENS)]}
    (folder / "abi-logits.json").write_text(json.dumps(answer) + "\n", encoding="utf-8")


def draw() -> dict[str, Array]:
    """All tensors by their GGUF name; a matrix has shape (outputs, inputs)."""
    rng = np.random.default_rng(SEED)

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> Array:
        values: Array = (rng.standard_normal((outputs, inputs)) * gain / np.sqrt(inputs)).astype(np.float32)
        return values

    def norm() -> Array:
        return (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)

    size = len(VOCABULARY)
    tensors = {"token_embd": matrix(size, WIDTH, 3.0), "output_norm": norm(), "output": matrix(size, WIDTH, 2.0)}
    for layer in range(LAYERS):
        tensors[f"blk.{layer}.attn_norm"] = norm()
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{layer}.{name}"] = matrix(WIDTH, WIDTH, 1.5)
        tensors[f"blk.{layer}.ffn_norm"] = norm()
        tensors[f"blk.{layer}.ffn_gate"] = matrix(FEED_FORWARD, WIDTH, 1.5)
        tensors[f"blk.{layer}.ffn_up"] = matrix(FEED_FORWARD, WIDTH, 1.5)
        tensors[f"blk.{layer}.ffn_down"] = matrix(WIDTH, FEED_FORWARD, 1.5)
    return tensors


def write_model(path: Path, tensors: dict[str, Array]) -> None:
    """The GGUF file."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("steelyard ABI self-test")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([0.0] * len(VOCABULARY))
    kind = gguf.TokenType
    writer.add_token_types([kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256, kind.NORMAL])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(tensors: dict[str, Array], tokens: list[int]) -> Array:
    """The logits after the last token, shape (vocabulary,), in 64-bit floats."""
    weight = {name: values.astype(np.float64) for name, values in tensors.items()}
    state = weight["token_embd"][tokens]
    for layer in range(LAYERS):
        own = {name.split(".")[-1]: values for name, values in weight.items() if name.startswith(f"blk.{layer}.")}
        state = state + attention(own, normed(state, own["attn_norm"]))
        state = state + feed_forward(own, normed(state, own["ffn_norm"]))
    result: Array = normed(state[-1], weight["output_norm"]) @ weight["output"].T
    return result


def normed(state: Array, gain: Array) -> Array:
    """Root mean square normalisation."""
    result: Array = state / np.sqrt(np.mean(state**2, axis=-1, keepdims=True) + EPSILON) * gain
    return result


def attention(weight: dict[str, Array], state: Array) -> Array:
    """Causal attention of all heads; ``state`` has shape (tokens, WIDTH)."""
    count, size = len(state), WIDTH // HEADS

    def heads(name: str) -> Array:
        return (state @ weight[name].T).reshape(count, HEADS, size).transpose(1, 0, 2)

    queries, keys, values = rotated(heads("attn_q")), rotated(heads("attn_k")), heads("attn_v")
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(size)
    scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = (shares @ values).transpose(1, 0, 2).reshape(count, WIDTH)
    result: Array = mixed @ weight["attn_output"].T
    return result


def rotated(heads: Array) -> Array:
    """Rotary positions on neighbouring pairs; ``heads`` has shape (HEADS, tokens, size)."""
    _, count, size = heads.shape
    angles = np.arange(count)[:, None] * ROPE_BASE ** (-np.arange(0, size, 2) / size)[None, :]
    even, odd = heads[..., 0::2], heads[..., 1::2]
    result = np.empty_like(heads)
    result[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    result[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return result


def feed_forward(weight: dict[str, Array], state: Array) -> Array:
    """The gated layer."""
    gate = state @ weight["ffn_gate"].T
    result: Array = (gate / (1 + np.exp(-gate)) * (state @ weight["ffn_up"].T)) @ weight["ffn_down"].T
    return result


if __name__ == "__main__":
    main()
