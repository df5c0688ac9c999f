"""GGUF files with one to three faults, made from good ones: what a damaged download or a stranger may send.

A case is named by its base, a model of ``tiny_models``, and a number; the same name always gives the same bytes. As a
program it makes cases without an end, or for a time, and starts each in processes of its own, with limits:

    python tests/support/gguf_mutations.py --minutes 60 --log /tmp/fuzz-gguf.log
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
ALIGNMENT = 32
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
ARCHITECTURES = (
    *("llama", "gemma3", "qwen35", "qwen2", "qwen3", "mamba2", "mamba", "gpt2", "bert", "t5", "rwkv6", "rwkv7"),
    *("deepseek2", "phi3", "gptneox", "bloom", "mpt", "falcon", "command-r", "granite", "jamba", "gemma2", "gemma"),
    *("qwen2moe", "qwen3moe", "olmoe", "llama4", "gpt-oss", "lfm2", "t5encoder", "nomic-bert", "plamo2", "no-such"),
)
TOKENIZERS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "")
ODD_NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 63, 65, 127, 255, 256, 1000, 4095, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40),
    *(2**63 - 1, 2**64 - 1, 1e-6, -1e-6, 0.5, 1e30, float("nan"), float("inf"), -float("inf"), 1e-45),
)
EXTRA = (
    *("attention.sliding_window", "attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "block_count"),
    *("context_length", "embedding_length", "feed_forward_length", "expert_count", "expert_used_count", "pooling_type"),
    *("rope.dimension_count", "rope.freq_base", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "vocab_size"),
    *("full_attention_interval", "attention.causal", "logit_scale", "final_logit_softcapping", "nextn_predict_layers"),
    *("embedding_length_out", "attention.kv_lora_rank", "leading_dense_block_count", "attention.max_alibi_bias"),
)


@dataclass(frozen=True)
class Value:
    """A metadata value: its GGUF type, of an array its elements' type, and what it holds."""

    type: int
    data: Any
    element: int = -1


@dataclass(frozen=True)
class Tensor:
    """A tensor's entry and its bytes."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes


@dataclass
class Gguf:
    """A file in parts that can be changed alone."""

    values: list[tuple[str, Value]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)

    def bytes(self) -> bytes:
        """The file."""
        out = bytearray(MAGIC + struct.pack("<IQQ", 3, len(self.tensors), len(self.values)))
        for key, value in self.values:
            out += _text(key) + struct.pack("<I", value.type) + _encoded(value)
        data = bytearray()
        for index, tensor in enumerate(self.tensors):
            data += bytes(-len(data) % ALIGNMENT)
            offset = self.offsets.get(index, len(data))
            out += _text(tensor.name) + struct.pack("<I", len(tensor.shape))
            out += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + struct.pack("<IQ", tensor.type, offset)
            data += tensor.data
        out += bytes(-len(out) % ALIGNMENT)
        return bytes(out + data)


def _text(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _encoded(value: Value) -> bytes:
    if value.type == STRING:
        return _text(value.data)
    if value.type != ARRAY:
        return _number(value.type, value.data)
    head = struct.pack("<IQ", value.element, len(value.data))
    if value.element == STRING:
        return head + b"".join(map(_text, value.data))
    return head + b"".join(_number(value.element, item) for item in value.data)


def _number(type_: int, data: Any) -> bytes:
    bits = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 32, 10: 64, 11: 64}.get(type_)
    if bits is None:
        if type_ == 7:
            return bytes([bool(data)])
        try:
            return struct.pack("<" + FORMATS[type_], float(data))
        except OverflowError:
            return struct.pack("<" + FORMATS[type_], float("inf"))
    whole = int(data) if data == data and abs(data) < float("inf") else 0
    return (whole & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def parse(raw: bytes) -> Gguf:
    """The parts of a good file."""
    at = 0

    def take(layout: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from("<" + layout, raw, at)
        at += struct.calcsize("<" + layout)
        return found

    def text() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return raw[at - size : at].decode("utf-8", "surrogateescape")

    def scalar(type_: int) -> Any:
        return text() if type_ == STRING else take(FORMATS[type_])

    at = 8
    tensor_count, key_count = take("Q"), take("Q")
    found = Gguf()
    for _ in range(key_count):
        key, type_ = text(), take("I")
        if type_ == ARRAY:
            element, count = take("I"), take("Q")
            found.values.append((key, Value(ARRAY, [scalar(element) for _ in range(count)], element)))
        else:
            found.values.append((key, Value(type_, scalar(type_))))
    heads = []
    for _ in range(tensor_count):
        name, dimensions = text(), take("I")
        shape = tuple(take("Q") for _ in range(dimensions))
        heads.append((name, shape, take("I"), take("Q")))
    start = -(-at // ALIGNMENT) * ALIGNMENT
    ends = sorted({offset for *_, offset in heads} | {len(raw) - start})
    for name, shape, type_, offset in heads:
        end = ends[ends.index(offset) + 1]
        found.tensors.append(Tensor(name, shape, type_, raw[start + offset : start + end]))
    return found


# --- faults -----------------------------------------------------------------------------------------------------------

Fault = Callable[[Gguf, random.Random], str]


def odd_number(rng: random.Random) -> float:
    return rng.choice(ODD_NUMBERS)


def change_a_number(file: Gguf, rng: random.Random) -> str:
    places = [index for index, (_, value) in enumerate(file.values) if value.type not in (STRING, ARRAY)]
    index = rng.choice(places)
    key, value = file.values[index]
    number: float = value.data
    number = rng.choice([odd_number(rng), number * 2, number + 1, number - 1, number // 2 if number == number else 0])
    file.values[index] = (key, replace(value, data=number))
    return f"{key} = {number}"


def change_a_type(file: Gguf, rng: random.Random) -> str:
    index = rng.randrange(len(file.values))
    key, value = file.values[index]
    type_ = rng.choice([*FORMATS, STRING, ARRAY])
    number = value.data if isinstance(value.data, int | float) else 1
    new = {
        STRING: Value(STRING, str(value.data)[:100]),
        ARRAY: Value(ARRAY, [number] * rng.choice([0, 1, 2, 6, 1000]), rng.choice(list(FORMATS))),
    }.get(type_, Value(type_, number))
    file.values[index] = (key, new)
    return f"{key} has the type {type_}"


def drop_a_key(file: Gguf, rng: random.Random) -> str:
    return f"without {file.values.pop(rng.randrange(len(file.values)))[0]}"


def add_a_key(file: Gguf, rng: random.Random) -> str:
    architecture = next((value.data for key, value in file.values if key == "general.architecture"), "llama")
    key = f"{architecture}.{rng.choice(EXTRA)}"
    if any(key == other for other, _ in file.values):
        return change_a_number(file, rng)
    type_ = rng.choice([4, 5, 6, 7, 10, ARRAY])
    number = odd_number(rng)
    value = Value(ARRAY, [number] * rng.choice([1, 2, 6]), 5) if type_ == ARRAY else Value(type_, number)
    file.values.append((key, value))
    return f"{key} = {value.data}"


def change_a_list(file: Gguf, rng: random.Random) -> str:
    places = [index for index, (_, value) in enumerate(file.values) if value.type == ARRAY and value.data]
    if not places:
        return change_a_number(file, rng)
    index = rng.choice(places)
    key, value = file.values[index]
    items = list(value.data)
    some = rng.randrange(len(items))
    match rng.randrange(7):
        case 0:
            items, how = [items[0]] * len(items), "all equal"
        case 1:
            items, how = items[:some], f"cut to {some}"
        case 2:
            items, how = items + items[: some + 1], f"{some + 1} more"
        case 3:
            rng.shuffle(items)
            how = "shuffled"
        case 4:
            items, how = [], "empty"
        case 5:
            items[some] = (
                rng.choice(["", "\xff", "<0x", "<0xZZ>", "▁", "a" * 5000, "\x00"])
                if isinstance(items[some], str)
                else odd_number(rng)
            )
            how = f"item {some} is {items[some]!r:.40}"
        case _:
            if isinstance(items[0], str):
                items, how = ["" for _ in items], "all empty"
            else:
                odd = odd_number(rng)
                items, how = [odd for _ in items], f"all {odd}"
    file.values[index] = (key, replace(value, data=items))
    return f"{key} is {how}"


def change_a_word(file: Gguf, rng: random.Random) -> str:
    words: dict[str, tuple[str, ...]] = {
        "general.architecture": ARCHITECTURES,
        "tokenizer.ggml.model": TOKENIZERS,
        "tokenizer.ggml.pre": ("default", "llama-bpe", "gpt-2", "qwen35", "no-such", "deepseek-llm", "tekken", ""),
    }
    places = [index for index, (key, _) in enumerate(file.values) if key in words]
    if not places:
        return change_a_number(file, rng)
    index = rng.choice(places)
    key, value = file.values[index]
    word = rng.choice(words[key])
    if key == "general.architecture" and rng.random() < 0.7:
        file.values[:] = [(k.replace(f"{value.data}.", f"{word}.", 1), v) for k, v in file.values]
    file.values[index] = (key, Value(STRING, word))
    return f"{key} = {word}"


def change_a_tensor(file: Gguf, rng: random.Random) -> str:
    if not file.tensors:
        return change_a_number(file, rng)
    index = rng.randrange(len(file.tensors))
    tensor = file.tensors[index]
    match rng.randrange(8):
        case 0:
            type_ = rng.choice([0, 1, 2, 6, 8, 12, 14, 16, 24, 25, 26, 27, 28, 30, 34, 39, 4, 5, 31, 99, 2**31])
            new, how = replace(tensor, type=type_, data=tensor.data * 8), f"has the type {type_}"
        case 1:
            shape = tuple(reversed(tensor.shape)) if len(set(tensor.shape)) > 1 else (*tensor.shape, 2)
            new, how = replace(tensor, shape=shape, data=tensor.data * 2), f"has the shape {shape}"
        case 2:
            shape = (*tensor.shape[:-1], rng.choice([0, 1, tensor.shape[-1] // 2, tensor.shape[-1] * 2, 2**40, 2**63]))
            new, how = replace(tensor, shape=shape, data=tensor.data * 2), f"has the shape {shape}"
        case 3:
            other = rng.choice(file.tensors).name
            new, how = replace(tensor, name=rng.choice([other + "x", "blk.99.attn_q.weight", ""])), "has another name"
        case 4:
            file.tensors.pop(index)
            return f"without {tensor.name}"
        case 5:
            file.offsets[index] = rng.choice([0, ALIGNMENT, 2**40 * ALIGNMENT, 2**63])
            return f"{tensor.name} is elsewhere"
        case 6:
            fill = rng.choice([b"\x00", b"\xff", b"\x7f\xc0", b"\x00\x7c", b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"])
            data = (fill * (len(tensor.data) // len(fill) + 1))[: len(tensor.data)]
            new, how = replace(tensor, data=data), f"is filled with {fill!r}"
        case _:
            data = rng.randbytes(len(tensor.data))
            new, how = replace(tensor, data=data), "is noise"
    file.tensors[index] = new
    return f"{tensor.name} {how}"


def type_all_norms(file: Gguf, rng: random.Random) -> str:
    type_ = rng.choice([24, 25, 26, 27, 28, 1, 30])
    file.tensors[:] = [replace(t, type=type_, data=t.data * 2) if "norm" in t.name else t for t in file.tensors]
    return f"all norms have the type {type_}"


FAULTS: tuple[Fault, ...] = (
    *[change_a_number] * 4,
    *[change_a_list] * 3,
    *[change_a_tensor] * 3,
    change_a_type,
    drop_a_key,
    add_a_key,
    change_a_word,
    change_a_word,
    type_all_norms,
)


def mutated(base: bytes, seed: int) -> tuple[bytes, str]:
    """A file with faults, and what they are."""
    rng = random.Random(seed)
    file = parse(base)
    faults = [rng.choice(FAULTS)(file, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    raw = bytearray(file.bytes())
    if rng.random() < 0.08:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(min(len(raw), 4096))
            raw[at] ^= 1 << rng.randrange(8)
        faults.append("flipped bits")
    return bytes(raw), "; ".join(faults)[:400]


# --- trying one ------------------------------------------------------------------------------------------------------

START = """
import json, sys, resource
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
from steelyard_runtime.engine.start import EngineStartError, start_engine
from steelyard_runtime.http.runtime import build_services
from steelyard_runtime.settings import load_settings
settings = load_settings(model=sys.argv[1], threads=1, batch_tokens=64, context_tokens=0, chats=1)
try:
    engine = start_engine(settings)
except EngineStartError as error:
    print(json.dumps({"refused": str(error)}))
else:
    engine.close(timeout_s=0)
    print(json.dumps({"ready": True}))
"""
LONGEST_S = 200.0


@dataclass(frozen=True)
class Outcome:
    """How a start ended: refused with a sentence, ready, or a finding (what should not be)."""

    refused: str = ""
    finding: str = ""
    seconds: float = 0.0


def start_of(path: Path) -> Outcome:
    """Start an engine with the file in a process, with limits, and look at what it says."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", START, str(path)], capture_output=True, timeout=LONGEST_S, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return Outcome(finding=f"a hang of {LONGEST_S:.0f} s", seconds=LONGEST_S)
    seconds = time.monotonic() - began
    if done.returncode:
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        return Outcome(finding=f"{name}: {done.stderr.strip()[-600:]}", seconds=seconds)
    said = json.loads(done.stdout.splitlines()[-1])
    refused = said.get("refused", "")
    finding = ("" if said.get("ready") else wrong_sentence(refused, path)) or wrong_errors(done.stderr)
    return Outcome(refused=refused, finding=finding, seconds=seconds)


def wrong_sentence(refused: str, path: Path) -> str:
    """What is wrong with a refusal; "" if nothing is."""
    if path.name not in refused:
        return f"the file is not named: {refused}"
    if "\n" in refused or not refused.isprintable() or len(refused) > 1500:
        return f"not one legible line: {refused!r}"
    if "Traceback" in refused or refused.rstrip().endswith(":"):
        return f"no reason: {refused}"
    return ""


def wrong_errors(errors: str) -> str:
    """What is wrong with what was written to standard error; "" if nothing is."""
    return f"standard error: {errors[-600:]}" if errors.strip() else ""


def cases(bases: dict[str, bytes], first: int) -> Iterator[tuple[str, int]]:
    """Names of cases, from the number ``first`` on."""
    number = first
    while True:
        for base in bases:
            yield base, number
        number += 1


def main() -> int:
    import tiny_models

    parser = argparse.ArgumentParser(description="Start engines with damaged models.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="The first case's number.")
    parser.add_argument("--log", type=Path, default=None)
    asked = parser.parse_args()
    out = asked.log.open("a", buffering=1) if asked.log else sys.stdout
    until, tried, findings, refused, slowest = time.monotonic() + asked.minutes * 60, 0, 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        bases = {kind: tiny_models.write(kind, Path(folder) / "base.gguf").read_bytes() for kind in tiny_models.KINDS}
        for base, number in cases(bases, asked.first):
            if time.monotonic() > until:
                break
            path = Path(folder) / f"{base}-{number}.gguf"
            raw, faults = mutated(bases[base], number)
            path.write_bytes(raw)
            outcome = start_of(path)
            path.unlink()
            tried, refused = tried + 1, refused + bool(outcome.refused)
            slowest = max(slowest, outcome.seconds)
            if outcome.finding:
                findings += 1
                out.write(f"FINDING {base} {number}: {faults}\n    {outcome.finding}\n")
            elif tried % 50 == 0:
                out.write(f"{tried} tried, {refused} refused, {findings} findings, slowest {slowest:.1f} s\n")
    out.write(f"end: {tried} tried, {refused} refused, {findings} findings, slowest {slowest:.1f} s\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
