"""A head: a linear map from a model's last hidden state, and optionally a state's words, to calibrated probabilities.

``head.json`` names what the head was fitted on and for, and ``head.safetensors`` holds its numbers. All arithmetic is
in 64 bits and in a fixed order: the same hidden state gives the same bits, whatever the number of threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.scoring.words import MAX_TERMS, Vocabulary, Words
from steelyard_runtime.whole_files import read_whole

DESCRIPTION_FILE = "head.json"
TENSORS_FILE = "head.safetensors"
HEADS = "heads"
"""Folder of the heads for other builds of llama.cpp, each in a folder called like its build."""
MAX_DESCRIPTION_BYTES = 4 << 20
MAX_TENSOR_BYTES = 512 << 20
LARGEST = 1e30
"""Of the numbers of a head, so that no answer overflows."""
_BUILD = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")

Array = npt.NDArray[np.float64]
CalibrationName = Literal["temperature", "vector", "isotonic"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class HeadError(ValueError):
    """A head cannot be used; the message says what differs from what, and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Bound(_Part):
    """The things that a head belongs to. It is used with nothing else: its numbers would mean nothing."""

    contract: Annotated[str, Field(min_length=1, description="`NAME@VERSION` of the contract.")]
    question_sha256: Annotated[Sha256, Field(description="Hash of what the contract asks.")]
    model_sha256: Annotated[Sha256, Field(description="Hash of the model file.")]
    wording: Annotated[str, Field(min_length=1, description="Name of the fixed words around the state.")]
    prompt_sha256: Annotated[Sha256, Field(description="Hash of these words as tokens of the model.")]
    llama_cpp: Annotated[str, Field(min_length=1, description="Build of llama.cpp that gave the hidden states.")]


class Interval(_Part):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


class Figures(_Part):
    """Figures of a way of deciding on cases that it was not fitted on."""

    accuracy: Annotated[Interval, Field(description="Share of right answers.")]
    log_loss: Annotated[Interval, Field(description="Mean of -log(probability of the right option).")]
    ece: Annotated[Interval, Field(description="Mean gap of probability and accuracy, in ten bins.")]


class AnswerSet(_Part):
    """A set of options that holds the right one as often as stated, whatever the probabilities are worth."""

    coverage: Annotated[float, Field(gt=0, lt=1, description="Stated share of cases whose set holds the right option.")]
    probability: Annotated[float, Field(ge=0, le=1, description="Least probability of an option in the set.")]
    covered: Annotated[Interval, Field(description="Share of held-out cases whose set held it.")]
    mean_options: Annotated[float, Field(ge=0, description="Options of a set, on average.")]


class Measured(_Part):
    """Cross-validated figures of the head and of what it has to beat."""

    cases: Annotated[Count, Field(description="Labelled cases.")]
    folds: Annotated[Count, Field(description="Parts of the cross-validation.")]
    head: Annotated[Figures, Field(description="Of this head.")]
    state: Annotated[Figures | None, Field(description="Of the hidden state alone, where words are used as well.")] = (
        None
    )
    bag_of_words: Annotated[Figures, Field(description="Of the words alone, without a model.")]
    majority: Annotated[Figures, Field(description="Of the labels' shares alone.")]
    better_than_words: Annotated[
        Interval, Field(description="Accuracy of the head less that of the bag of words, paired by case.")
    ]
    answer_sets: Annotated[
        tuple[AnswerSet, ...],
        Strict(False),
        Field(description="Conformal sets: what holds the right option as often as stated."),
    ] = ()


class Description(_Part):
    """The file ``head.json``."""

    format: Annotated[Literal[1], Field(description="Version of this file's form.")]
    bound: Annotated[Bound, Field(description="What the head belongs to.")]
    options: Annotated[tuple[str, ...], Strict(False), Field(min_length=2, description="Option ids, in order.")]
    cases_sha256: Annotated[Sha256, Field(description="Hash of the labelled cases.")]
    tensors_sha256: Annotated[Sha256, Field(description="Hash of `head.safetensors`.")]
    embedding_size: Annotated[int, Field(ge=1, description="Numbers of a hidden state.")]
    word_terms: Annotated[int, Field(ge=0, le=MAX_TERMS, description="Words and pairs that are counted.")]
    run_terms: Annotated[int, Field(ge=0, le=MAX_TERMS, description="Parts of words that are counted.")]
    temperature: Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, description="Divides the logits.")]
    calibration: Annotated[
        CalibrationName,
        Field(
            description="`temperature`: nothing else. `vector`: each option's logit has a factor and a shift of its "
            "own, which are in the weights. `isotonic`: an increasing function of the probabilities follows."
        ),
    ] = "temperature"
    measured: Annotated[Measured, Field(description="Cross-validated figures.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """An increasing function of probabilities, straight between its knots, mixed with the identity as ``cases`` to 1.

    Attributes:
        at: Shape ``(knots,)``, increasing.
        to: Shape ``(knots,)``, not decreasing, 0 to 1.
        cases: Weight of the function.
    """

    at: Array
    to: Array
    cases: int

    def apply(self, probabilities: Array) -> Array:
        """Return the function of probabilities above 0, scaled to a sum of 1 along the last axis; shape as given."""
        mixed = (self.cases * np.interp(probabilities, self.at, self.to) + probabilities) / (self.cases + 1)
        return np.asarray(mixed / mixed.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAnswer:
    """The answer of a head to one state.

    Attributes:
        probabilities: One for each option, in order; they sum to 1.
        logits: Their logarithms up to a constant; of a head with ``steps``, before these.
        distance: 1 less the cosine of the standardised hidden state and the nearest option's mean, 0 to 2.
        distance_rank: Share of the held-out cases with a smaller distance, 0 to 1.
    """

    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    distance: float
    distance_rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The numbers of a head, 64-bit.

    Attributes:
        mean: Shape ``(embedding_size,)``, subtracted from a hidden state.
        scale: Shape ``(embedding_size,)``, divides it; not 0.
        weights: Shape ``(options, embedding_size)``.
        bias: Shape ``(options,)``.
        centres: Shape ``(options with cases, embedding_size)``, of length 1: directions of the options' means.
        distances: Shape ``(held-out cases,)``, increasing.
        words: The vocabularies; None for a head of the hidden state alone.
        word_weights: Shape ``(options, terms)``.
        temperature: Divides the logits.
        steps: Applied to the probabilities; None for none.
    """

    mean: Array
    scale: Array
    weights: Array
    bias: Array
    centres: Array
    distances: Array
    words: Words | None
    word_weights: Array
    temperature: float
    steps: Steps | None = None

    def apply(self, hidden: npt.NDArray[np.floating[Any]], state: str) -> HeadAnswer:
        """Decide about one state.

        Args:
            hidden: The last hidden state, shape ``(embedding_size,)``.
            state: The state's text, as the model read it.

        Raises:
            ValueError: The hidden state has another shape, or a number that is not finite.
            TextTooLongError: The head counts words, and the state has too many bytes.
        """
        if hidden.shape != self.mean.shape:
            raise ValueError(f"the hidden state has the shape {hidden.shape} and the head takes {self.mean.shape}")
        if not np.isfinite(hidden).all():
            raise ValueError("the model's hidden state is not finite")
        standard = (hidden.astype(np.float64) - self.mean) / self.scale
        logits = _dot(self.weights, standard) + self.bias
        if self.words is not None and (found := self.words.weights(state)):
            columns, weights = zip(*found, strict=True)
            logits = logits + _dot(self.word_weights[:, list(columns)], np.array(weights))
        logits = logits / self.temperature
        distance = self._distance(standard)
        probabilities = softmax(logits)
        if self.steps is not None:
            probabilities = self.steps.apply(probabilities)
        return HeadAnswer(
            probabilities=tuple(map(float, probabilities)),
            logits=tuple(map(float, logits)),
            distance=distance,
            distance_rank=float(np.searchsorted(self.distances, distance, side="left")) / len(self.distances),
        )

    def _distance(self, standard: Array) -> float:
        length = float(np.sqrt((standard * standard).sum()))
        if not length:
            return 1.0
        return float(1.0 - (_dot(self.centres, standard) / length).max())


def _dot(rows: Array, vector: Array) -> Array:
    """Multiply rows by a vector, summed by numpy itself: a BLAS sums in an order that depends on its threads."""
    products: Array = np.ascontiguousarray(rows * vector)
    return np.asarray(products.sum(axis=1))


def softmax(logits: Array) -> Array:
    """Return probabilities along the last axis, shape as given."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head with its description.

    Attributes:
        description: What it belongs to and how good it is.
        linear: Its numbers.
        sha256: Of ``head.json``, which names the hash of the numbers: it stands for the whole head.
    """

    description: Description
    linear: Linear
    sha256: str

    def apply(self, hidden: npt.NDArray[np.floating[Any]], state: str) -> HeadAnswer:
        """As ``Linear.apply``."""
        return self.linear.apply(hidden, state)

    def check(self, *, contract: Contract, model_sha256: str, prompt_sha256: str, llama_cpp: str) -> None:
        """Refuse a head that belongs to something else.

        Raises:
            HeadError: With each thing that differs.
        """
        bound = self.description.bound
        pairs = {
            "contract": (bound.contract, contract.full_name),
            "question, options or readout (hash)": (bound.question_sha256, contract.question_sha256),
            "wording": (bound.wording, contract.readout.wording),
            "model (sha256)": (bound.model_sha256, model_sha256),
            "prompt (sha256)": (bound.prompt_sha256, prompt_sha256),
            "llama.cpp": (bound.llama_cpp, llama_cpp),
        }
        differing = [
            f"{what}: fitted for {ours}, used with {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs
        ]
        if differing:
            raise HeadError(
                f"the head of {contract.full_name} does not belong to what it is used with; "
                + "; ".join(differing)
                + f". Fit it again: steelyard decision fit {contract.name}, with --image IMAGE for a build in an image"
            )


def head_files(description: Description, linear: Linear) -> dict[str, bytes]:
    """Return the files of a head, by name. The same head gives the same bytes.

    Args:
        description: Its hash of the numbers, sizes and temperature are replaced by those of ``linear``.
        linear: The numbers.
    """
    tensors: dict[str, npt.NDArray[Any]] = {
        "mean": linear.mean,
        "scale": linear.scale,
        "weights": linear.weights,
        "bias": linear.bias,
        "centres": linear.centres,
        "distances": linear.distances,
    }
    counts = (0, 0)
    if (words := linear.words) is not None:
        counts = len(words.words), len(words.runs)
        tensors["word_weights"] = linear.word_weights
        tensors["idf"] = np.array([*words.words.idf, *words.runs.idf], np.float64)
        tensors["terms"] = np.frombuffer("\n".join([*words.words.index, *words.runs.index]).encode(), np.uint8)
    if (steps := linear.steps) is not None:
        tensors |= {"steps_at": steps.at, "steps_to": steps.to, "steps_cases": np.array([steps.cases], np.float64)}
    body = safetensors.numpy.save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)})
    described = description.model_copy(
        update={
            "tensors_sha256": hashlib.sha256(body).hexdigest(),
            "embedding_size": len(linear.mean),
            "word_terms": counts[0],
            "run_terms": counts[1],
            "temperature": linear.temperature,
        }
    )
    return {TENSORS_FILE: body, DESCRIPTION_FILE: (described.model_dump_json(indent=1) + "\n").encode()}


def folder_for_build(folder: Path, llama_cpp: str) -> Path:
    """Return where the head of a decision's folder for one build of llama.cpp lies, if it is not the folder's own.

    Raises:
        HeadError: The build's name is none of a folder.
    """
    if not _BUILD.fullmatch(llama_cpp):
        raise HeadError(f"{llama_cpp!r} is no name of a build of llama.cpp, such as b10435")
    return folder / HEADS / llama_cpp


def head_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders of all heads of a decision: its own first, then those for other builds by their names."""
    others = sorted(path.parent for path in (folder / HEADS).glob(f"*/{DESCRIPTION_FILE}"))
    return ((folder,) if (folder / DESCRIPTION_FILE).exists() or not others else ()) + tuple(others)


def load_head(folder: Path) -> Head:
    """Read a head from a decision's folder.

    Raises:
        HeadError: A file is missing, too large, damaged, or does not fit the other one.
    """
    described = _read(folder / DESCRIPTION_FILE, most=MAX_DESCRIPTION_BYTES)
    body = _read(folder / TENSORS_FILE, most=MAX_TENSOR_BYTES)
    try:
        description = Description.model_validate_json(described)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "file"
        raise HeadError(f"{folder / DESCRIPTION_FILE}: {place}: {first['msg']}") from error
    found = hashlib.sha256(body).hexdigest()
    if found != description.tensors_sha256:
        raise HeadError(
            f"{folder / TENSORS_FILE} has the sha256 {found}, and {DESCRIPTION_FILE} names "
            f"{description.tensors_sha256}; fit the head again"
        )
    try:
        tensors = safetensors.numpy.load(body)
        linear = _linear(description, tensors)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise HeadError(f"{folder / TENSORS_FILE} is no head: {error}; fit it again") from error
    return Head(description=description, linear=linear, sha256=hashlib.sha256(described).hexdigest())


def _read(path: Path, *, most: int) -> bytes:
    try:
        return read_whole(path, most=most)
    except OSError as error:
        raise HeadError(f"cannot read {path}: {error.strerror}; fit the head with: steelyard decision fit") from error


def _linear(description: Description, tensors: Mapping[str, npt.NDArray[Any]]) -> Linear:
    options, size = len(description.options), description.embedding_size
    terms = description.word_terms + description.run_terms
    shapes: dict[str, tuple[int | None, ...]] = {
        "mean": (size,),
        "scale": (size,),
        "weights": (options, size),
        "bias": (options,),
        "centres": (None, size),
        "distances": (None,),
    }
    if terms:
        shapes |= {"word_weights": (options, terms), "idf": (terms,)}
    if description.calibration == "isotonic":
        shapes |= {"steps_at": (None,), "steps_to": (None,), "steps_cases": (1,)}
    numbers = {name: _checked(tensors, name, shape) for name, shape in shapes.items()}
    if (least := numbers["scale"].min()) < 1 / LARGEST:
        raise ValueError(f"a scale is {least:g}; the least is {1 / LARGEST:g}")
    if not (np.diff(numbers["distances"]) >= 0).all():
        raise ValueError("the distances do not increase")
    words = _words(description, tensors, numbers["idf"]) if terms else None
    return Linear(
        mean=numbers["mean"],
        scale=numbers["scale"],
        weights=numbers["weights"],
        bias=numbers["bias"],
        centres=numbers["centres"],
        distances=numbers["distances"],
        words=words,
        word_weights=numbers.get("word_weights", np.zeros((options, 0))),
        temperature=description.temperature,
        steps=_steps(numbers) if description.calibration == "isotonic" else None,
    )


def _steps(numbers: Mapping[str, Array]) -> Steps:
    at, to, cases = numbers["steps_at"], numbers["steps_to"], float(numbers["steps_cases"][0])
    increasing = bool((np.diff(at) > 0).all()) and bool((np.diff(to) >= 0).all())
    if len(at) != len(to) or not increasing or to[0] < 0 or to[-1] > 1 or cases < 0:
        raise ValueError("the steps of the probabilities do not increase from 0 to 1")
    return Steps(at=at, to=to, cases=int(cases))


def _words(description: Description, tensors: Mapping[str, npt.NDArray[Any]], idf: Array) -> Words:
    terms = tensors["terms"].tobytes().decode().split("\n")
    cut = description.word_terms
    return Words(Vocabulary.of(terms[:cut], map(float, idf[:cut])), Vocabulary.of(terms[cut:], map(float, idf[cut:])))


def _checked(tensors: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int | None, ...]) -> Array:
    tensor = tensors[name]
    fits = len(tensor.shape) == len(shape) and all(
        found > 0 and (wanted is None or found == wanted) for found, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype != np.float64:
        raise ValueError(f"{name} is {tensor.dtype} of the shape {tensor.shape}; float64 of {shape} is needed")
    if not np.isfinite(tensor).all():
        raise ValueError(f"{name} has a number that is not finite")
    if np.abs(tensor).max() > LARGEST:
        raise ValueError(f"{name} has the number {tensor.flat[np.abs(tensor).argmax()]:g}; {LARGEST:g} is allowed")
    return tensor
