"""Options as cases: the option whose own text is most like the state, by the model's hidden states.

The state and each option's text are read in the same fixed words, which ask nothing, and the hidden states at their
ends are compared by cosine. What all texts have in common would hide what they say: so each number is divided by its
spread over a few reference texts, which belong to no subject, and the options' mean is subtracted from options and
state. The words that a state shares with an option's text count beside it. Nothing was fitted to a decision.

A way out (``none_of_these``) has no text of its own to be like: it stands where the reference texts lie, and shares as
many words with a state as a reference text does with the option nearest to it. So it is chosen by what resembles no
option more than it resembles anything else.

Reference texts and options are evaluated when they are first asked about, and kept. From then on a decision costs the
state's tokens, and all decisions about one state, those with heads included, share its one evaluation.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steelyard_runtime.decision import Layout, Option, Question
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.scoring.prompt import Template
from steelyard_runtime.scoring.strategy import Encode, Position, Prompt, Readout, without_slots
from steelyard_runtime.scoring.wordings import WORDINGS, state_prompt
from steelyard_runtime.scoring.words import MAX_TEXT_BYTES, Words, learn

VERSION = "options-as-cases-2"
WORDING = WORDINGS["one-word-1"]
TEMPERATURE = 0.09
"""Divides the likenesses. One for all decisions, chosen on labelled cases of three public sets and two models."""
WORDS_SHARE = 0.25
"""The weight of the likeness of words beside the cosine of hidden states."""
WAY_OUT_NAMES = frozenset({"none of these", "none of the above", "none", "other", "something else"})
"""Names of a way out; case, and ``_`` or ``-`` for a space, do not count."""
ANSWERS = frozenset({"yes", "no", "true", "false"})
"""Names that answer a question, and say nothing of a state."""
LEAST_LETTERS = 3
"""Bytes of letters in a text that can be a case: three Latin letters, or one Chinese character."""
REFERENCES = (
    "How do I change the address on my account?",
    "The meeting was moved to Thursday at three.",
    "My order arrived damaged and I would like a new one.",
    '{"event":"login","user":"u-481","country":"NL","device":"new","attempts":3}',
    "Can you tell me what the weather will be tomorrow?",
    "Thanks, that was all I needed.",
    "The server has been returning errors since the last deployment.",
    "Please cancel my subscription at the end of the month.",
    "I was charged twice for the same purchase.",
    "He said he would come by later, but nobody showed up.",
    "Where can I download my invoice?",
    "The function returns None when the list is empty.",
)
"""Texts of no subject in particular: where they lie, and how far they spread, is what a state is measured against."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OptionsAsCases:
    """The strategy, and its reader: it needs nothing of a model but hidden states.

    Attributes:
        name: Named in answers.
        most_options: Options that one question may have.
    """

    name: str = "options-as-cases"
    hidden: bool = True
    in_template: bool = False
    calibrated: bool = False
    most_options: int = 0

    def prompt_version(self, layout: Layout) -> str:  # noqa: ARG002 - the state stands alone
        """See ``Strategy``."""
        return VERSION

    def refusal(self, question: Question) -> str:
        """See ``Strategy``: every option but a way out needs a text, and there is at least one such option."""
        if question.ordered:
            return "its options are levels, and a likeness knows no order"
        cases = [(option, text) for option in question.options if (text := case_text(option)) is not None]
        for option, text in cases:
            if option.name.lower() in ANSWERS or not says_something(text):
                return f"a state cannot be like the option {option.id[:40]!r}; describe what it stands for"
        return "" if cases else "every option is a way out; add one that is not"

    def on(self, template: Template, encode: Encode, *, max_options: int) -> OptionsAsCases:  # noqa: ARG002
        """See ``Strategy``."""
        return OptionsAsCases(most_options=max_options)

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt, ...]:  # noqa: ARG002
        """The state, every option that has a text, and the reference texts."""
        texts = [text for option in question.options if (text := case_text(option)) is not None]
        return (state_prompt(WORDING, state), *map(kept_prompt, texts), *map(kept_prompt, REFERENCES))

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:
        """See ``Reader``."""
        vectors = [vector_of(position) for position in positions]
        cases = [case_text(option) for option in question.options]
        with_text = [index for index, text in enumerate(cases) if text is not None]
        texts = tuple(text for text in cases if text is not None)
        references = np.array(vectors[1 + len(with_text) :])
        anchors = np.tile(references.mean(axis=0), (len(cases), 1))
        anchors[with_text] = vectors[1 : 1 + len(with_text)]
        likeness = cosines(vectors[0], anchors, spread=references.std(axis=0))
        words = np.full(len(cases), usual_words(texts) if counts_words(state, texts) else 0.0)
        words[with_text] = shared_words(state, texts)
        likeness += WORDS_SHARE * words
        return without_slots(likeness / TEMPERATURE)


def case_text(option: Option) -> str | None:
    """Return an option's text as a case, or None for a way out.

    Examples:
        >>> case_text(Option(id="1", text="lost_card: It is gone.", name="lost_card"))
        'lost card: It is gone.'
    """
    name = option.name.replace("_", " ")
    if option.way_out or name.replace("-", " ").strip().lower() in WAY_OUT_NAMES:
        return None
    return name + option.text[len(option.name) :]


def says_something(text: str) -> bool:
    """Tell whether a text has enough letters, of any script, for a state to be like it."""
    return len("".join(each for each in text if unicodedata.category(each)[0] == "L").encode()) >= LEAST_LETTERS


def kept_prompt(text: str) -> Prompt:
    """The prompt of a text that many decisions need."""
    return Prompt(WORDING.before, (), (Piece(text), *WORDING.after), private=False, kept=True)


def vector_of(position: Position) -> Array:
    """The hidden state in 64 bits.

    Raises:
        ValueError: There is none, or it has a number that is not finite.
    """
    if position.hidden is None:
        raise ValueError("the engine gave no hidden state")
    if not np.isfinite(position.hidden).all():
        raise ValueError("the model's hidden state is not finite")
    return position.hidden.astype(np.float64)


def cosines(state: Array, anchors: Array, *, spread: Array, middle: Array | None = None) -> Array:
    """Cosine of the state and each anchor, seen from the middle; 0 for one that lies there.

    Args:
        state: Shape ``(embedding_size,)``.
        anchors: Shape ``(options, embedding_size)``.
        spread: Standard deviation of each number, shape ``(embedding_size,)``; a number that does not vary is left out.
        middle: Shape ``(embedding_size,)``; the anchors' mean unless given.

    Returns:
        Shape ``(options,)``.
    """
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    middle = anchors.mean(axis=0) if middle is None else middle
    away, sides = (state - middle) * inverse, (anchors - middle) * inverse
    # Summed by numpy itself: a BLAS sums in an order that depends on its threads.
    products = np.ascontiguousarray(sides * away).sum(axis=1)
    lengths = np.sqrt((sides * sides).sum(axis=1) * (away * away).sum())
    found: Array = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return found


@dataclass(frozen=True, slots=True)
class _OptionWords:
    """The terms of some options: the options that have each, with its weight there."""

    words: Words
    found_in: tuple[tuple[tuple[int, float], ...], ...]


@functools.lru_cache(maxsize=64)
def _option_words(texts: tuple[str, ...]) -> _OptionWords:
    words = learn(texts)
    found_in: list[list[tuple[int, float]]] = [[] for _ in range(len(words))]
    for option, text in enumerate(texts):
        for term, weight in words.weights(text):
            found_in[term].append((option, weight))
    return _OptionWords(words, tuple(map(tuple, found_in)))


def counts_words(state: str, texts: tuple[str, ...]) -> bool:
    """Tell whether words are counted: not where state and texts have more than ``MAX_TEXT_BYTES`` together."""
    return len(state.encode()) + sum(len(text.encode()) for text in texts) <= MAX_TEXT_BYTES


def shared_words(state: str, texts: tuple[str, ...]) -> Array:
    """The likeness of the state's words and parts of words to those of each text, 0 to 2; 0 where they do not count.

    Returns:
        Shape ``(texts,)``.
    """
    likeness = np.zeros(len(texts))
    if not counts_words(state, texts):
        return likeness
    known = _option_words(texts)
    sums: list[list[float]] = [[] for _ in texts]
    for term, weight in known.words.weights(state):
        for option, other in known.found_in[term]:
            sums[option].append(weight * other)
    likeness[:] = [math.fsum(products) for products in sums]
    return likeness


@functools.lru_cache(maxsize=64)
def usual_words(texts: tuple[str, ...]) -> float:
    """The likeness of words that a reference text has to the text nearest to it, on average."""
    return math.fsum(shared_words(reference, texts).max() for reference in REFERENCES) / len(REFERENCES)
