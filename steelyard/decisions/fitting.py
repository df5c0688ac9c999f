"""Fits a head: two multinomial logistic regressions, one of the hidden states and one of the words, weighed together.

Of a score, whose options are steps of one thing, two more are tried: regressions that know the order.

Each regression is regularised by L2, whose strength is chosen by cross-validated log loss. Their logits are added and
calibrated by what was held out (``calibrating``): that stacks them and calibrates them at once. All reported figures
are of predictions whose label neither a regression nor a calibration nor any choice has seen.

The options' own texts are cases too, one for each option that has a description or a telling name: a case of each
option is known before anything is labelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from steelyard.decisions import metrics
from steelyard.decisions.calibrating import KINDS, Calibration, Calibrator, Chosen, Folds, Way
from steelyard.decisions.metrics import Array, Labels
from steelyard_runtime.decisions.head import Linear, Measured, softmax
from steelyard_runtime.scoring.words import Words, learn

STRENGTHS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
"""Inverse strengths of L2 that are tried, for features whose squares sum to about 1."""
FOLDS = 5
LEAST_CASES = 2
"""Labelled cases of each option: one to learn from while the other is held out."""
OF_STATE = (("state",), ("state in order",))
OF_WORDS = (("words",), ("words in order",))
OF_BOTH = (
    ("state", "words"),
    ("state in order", "words in order"),
    ("state", "words", "state in order", "words in order"),
)
"""Parts that a head may have: of the hidden state alone, of the words alone, and of both."""
COVERAGES = (0.9, 0.95)
"""Stated coverages of the answer sets that are reported."""
SEED = 0
_ITERATIONS = 1000
_TOLERANCE = 1e-4
_ABSENT = -12.0
"""Logarithm of the probability of an option without a case in the fold."""


class FitError(ValueError):
    """Nothing can be fitted to these cases; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """States with labels.

    Attributes:
        hidden: Hidden states, shape ``(cases, embedding_size)``.
        texts: The states' texts.
        labels: Index of the right option of each, shape ``(cases,)``.
    """

    hidden: npt.NDArray[np.float32]
    texts: tuple[str, ...]
    labels: Labels

    def __len__(self) -> int:
        """Cases."""
        return len(self.texts)

    def take(self, chosen: npt.NDArray[np.int64]) -> Examples:
        """Return some of them, in that order."""
        return Examples(
            hidden=self.hidden[chosen], texts=tuple(self.texts[each] for each in chosen), labels=self.labels[chosen]
        )

    def with_more(self, more: Examples) -> Examples:
        """Return both together."""
        return Examples(
            hidden=np.concatenate([self.hidden, more.hidden]),
            texts=self.texts + more.texts,
            labels=np.concatenate([self.labels, more.labels]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A head, and how it does on cases that were held out.

    Attributes:
        linear: The numbers to serve.
        measured: Cross-validated figures of the head and of what it has to beat.
        probabilities: Of the held-out cases, shape ``(cases, options)``.
        distance_ranks: Of the held-out cases among each other, shape ``(cases,)``.
        chosen: Parts and calibration that the cases chose.
        validated: The regressions that it was chosen from.
    """

    linear: Linear
    measured: Measured
    probabilities: Array
    distance_ranks: Array
    chosen: Chosen
    validated: Validated

    @property
    def uses_words(self) -> bool:
        """Tell whether the words improved the head."""
        return self.linear.words is not None


def fit(
    cases: Examples,
    *,
    anchors: Examples,
    options: int,
    words: bool,
    in_order: bool = False,
    step: Callable[[int, int], None] = lambda *_: None,
) -> Fitted:
    """Fit a head.

    Args:
        cases: The labelled cases.
        anchors: The options' own texts, each with its option; may be empty. Never held out.
        options: Number of options.
        words: Whether the head may count words.
        in_order: Whether the options are steps of one thing, as those of a score are.
        step: Called with the regressions that are done and their number.

    Raises:
        FitError: An option has fewer than ``LEAST_CASES`` different cases.
    """
    check(cases, options=options)
    # Threads of a BLAS cost more than they gain on matrices of this size, and all the more beside other work.
    with threadpool_limits(1):
        validated = validate(cases, anchors=anchors, options=options, in_order=in_order, step=step)
        return _fit(validated, words=words)


def _fit(validated: Validated, *, words: bool) -> Fitted:
    cases, options = validated.cases, validated.options
    labels, folds = cases.labels, validated.folds
    head = validated.choose(*OF_STATE, *(OF_BOTH if words else ()))
    only_words = validated.choose(*OF_WORDS)
    uses_words = any(PARTS[part].of_words for part in head.way.parts)
    distances = validated.distances()
    measured = Measured(
        cases=len(cases),
        folds=int(folds.max()) + 1,
        head=metrics.figures(head.probabilities, labels),
        state=metrics.figures(validated.choose(*OF_STATE).probabilities, labels) if uses_words else None,
        bag_of_words=metrics.figures(only_words.probabilities, labels),
        majority=metrics.figures(_majority(labels, options, folds), labels),
        better_than_words=metrics.paired_difference(head.probabilities, only_words.probabilities, labels),
        answer_sets=tuple(
            metrics.answer_set(head.probabilities, labels, folds, coverage=coverage) for coverage in COVERAGES
        ),
    )
    return Fitted(
        linear=replace(validated.linear(head.calibration), distances=np.sort(distances)),
        measured=measured,
        probabilities=head.probabilities,
        distance_ranks=np.searchsorted(np.sort(distances), distances, side="left") / len(distances),
        chosen=head,
        validated=validated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Held-out logits of both regressions, and what a head of any part of them needs.

    Attributes:
        cases: The labelled cases.
        anchors: The options' own texts.
        options: Number of options.
        folds: Fold of each case, shape ``(cases,)``.
        logits: Held-out logits of ``state`` and ``words``, each of shape ``(cases, options)``.
        strengths: The strength of each for all cases.
        calibrator: Fits calibrations to the logits.
    """

    cases: Examples
    anchors: Examples
    options: int
    folds: Folds
    logits: Mapping[str, Array]
    strengths: Mapping[str, float]
    calibrator: Calibrator

    def choose(self, *parts: tuple[str, ...]) -> Chosen:
        """Return the best combination of parts and kind of calibration, judged on what it has not seen.

        Combinations with a part that was not validated are left out.
        """
        there = [each for each in parts if set(each) <= set(self.logits)]
        ways = [Way(parts=each, kind=kind) for kind in KINDS for each in there]
        return self.calibrator.choose(ways)

    def linear(self, calibration: Calibration) -> Linear:
        """Fit the weighed parts on everything and fold them into one linear map; it has no distances."""
        everything = self.cases.with_more(self.anchors)
        total = sum(calibration.weights.values())
        standard = Standard.of(everything.hidden)
        features = standard.apply(everything.hidden)
        state_weights, bias = np.zeros((self.options, features.shape[1])), calibration.shift / total
        words = learn(everything.texts) if any(PARTS[part].of_words for part in calibration.weights) else None
        counted = np.zeros((len(everything), 0)) if words is None else dense(words, everything.texts)
        word_weights = np.zeros((self.options, counted.shape[1]))
        for part, weight in calibration.weights.items():
            if PARTS[part].of_words:
                more, shift = self._folded(counted, part, calibration, weight / total)
                word_weights = word_weights + more
            else:
                more, shift = self._folded(features, part, calibration, weight / total)
                state_weights = state_weights + more
            bias = bias + shift
        return Linear(
            mean=standard.mean,
            scale=standard.scale,
            weights=state_weights,
            bias=bias,
            centres=_centres(features, everything.labels, self.options),
            distances=np.zeros(1),
            words=words,
            word_weights=word_weights,
            temperature=1 / total,
            steps=calibration.steps,
        )

    def _folded(self, features: Array, part: str, calibration: Calibration, weight: float) -> tuple[Array, Array]:
        """Fit a part on everything; return its weights and bias with the calibration's factors in them."""
        fitted = self._regress(features, np.concatenate([self.cases.labels, self.anchors.labels]), part)
        scale = weight * calibration.scale
        return scale[:, None] * (fitted.weights - fitted.weights.mean(axis=0)), scale * (
            fitted.bias - fitted.bias.mean()
        )

    def predict(
        self, learnt: npt.NDArray[np.int64], held: npt.NDArray[np.int64], parts: Sequence[str]
    ) -> dict[str, Array]:
        """Return the logits of some cases by regressions of others and the anchors, each ``(held cases, options)``."""
        examples, found = self.cases.take(learnt).with_more(self.anchors), {}
        for name in parts:
            x, unseen = PARTS[name].features(examples, self.cases.take(held))
            found[name] = self._regress(x, examples.labels, name).logits(unseen)
        return found

    def _regress(self, features: Array, labels: Labels, part: str) -> Regression:
        return PARTS[part].regress(features, labels, options=self.options, strength=self.strengths[part])

    def distances(self) -> Array:
        """Return distances of held-out cases to the options' means of the others, shape ``(cases,)``."""
        found = np.zeros(len(self.cases))
        for fold in range(int(self.folds.max()) + 1):
            learnt = self.cases.take(np.flatnonzero(self.folds != fold)).with_more(self.anchors)
            x, held = _of_state(learnt, self.cases.take(np.flatnonzero(self.folds == fold)))
            centres = _centres(x, learnt.labels, self.options)
            lengths = np.linalg.norm(held, axis=1)
            nearest = (held @ centres.T).max(axis=1)
            found[self.folds == fold] = 1.0 - nearest / np.where(lengths > 0, lengths, 1.0)
        return found


def validate(
    cases: Examples,
    *,
    anchors: Examples,
    options: int,
    in_order: bool = False,
    step: Callable[[int, int], None] = lambda *_: None,
) -> Validated:
    """Cross-validate the regressions. Arguments as of ``fit``."""
    folds = folds_of(cases)
    names = [name for name, part in PARTS.items() if in_order or part.regress is regress]
    counted = _Counter(step, total=len(names) * (int(folds.max()) + 1) * len(STRENGTHS))
    found = {name: _cross_validate(cases, anchors, folds, options, PARTS[name], counted) for name in names}
    logits = {part: each for part, (each, _) in found.items()}
    return Validated(
        cases=cases,
        anchors=anchors,
        options=options,
        folds=folds,
        logits=logits,
        calibrator=Calibrator(logits, cases.labels, folds),
        strengths={part: strength for part, (_, strength) in found.items()},
    )


def check(cases: Examples, *, options: int) -> None:
    """Refuse cases from which no head can be fitted.

    Raises:
        FitError: An option has fewer than ``LEAST_CASES`` different cases.
    """
    different: dict[int, set[str]] = defaultdict(set)
    for text, label in zip(cases.texts, cases.labels, strict=True):
        different[int(label)].add(text)
    few = [option for option in range(options) if len(different[option]) < LEAST_CASES]
    if few:
        raise FitError(
            f"{len(few)} of {options} options have fewer than {LEAST_CASES} different labelled cases, among them "
            f"number {few[0] + 1} with {len(different[few[0]])}; each needs {LEAST_CASES} or more"
        )


def folds_of(cases: Examples) -> Folds:
    """Return the fold of each case, shape ``(cases,)``.

    Each option's cases are spread evenly, and equal texts share a fold: a text that was learnt is not held out.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, text in enumerate(cases.texts):
        groups[text].append(index)
    by_label: dict[int, list[list[int]]] = defaultdict(list)
    for members in groups.values():
        by_label[int(cases.labels[members[0]])].append(members)
    rng = np.random.default_rng(SEED)
    folds = np.zeros(len(cases), np.int64)
    count, turn = min(FOLDS, len(groups)), 0
    for label in sorted(by_label):
        for position in rng.permutation(len(by_label[label])):
            folds[by_label[label][position]] = turn % count
            turn += 1
    return folds


class _Counter:
    """Counts regressions for a progress bar."""

    def __init__(self, step: Callable[[int, int], None], *, total: int) -> None:
        self._step, self._total, self._done = step, total, 0

    def one_more(self) -> None:
        self._done += 1
        self._step(self._done, self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """Subtracts the mean and divides by the deviation, so that a state's squares sum to about 1."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, hidden: npt.NDArray[np.float32]) -> Standard:
        """Learn both; a constant feature keeps its scale and becomes 0."""
        wide = hidden.astype(np.float64)
        deviation = wide.std(axis=0)
        constant = deviation <= 1e-12 * np.maximum(1.0, np.abs(wide).max(axis=0))
        scale = np.where(constant, 1.0, deviation) * np.sqrt(wide.shape[1])
        return cls(mean=wide.mean(axis=0), scale=scale)

    def apply(self, hidden: npt.NDArray[np.float32]) -> Array:
        """Return the standardised states, shape as given."""
        return (hidden.astype(np.float64) - self.mean) / self.scale


Features = Callable[[Examples, Examples], tuple[Array, Array]]
"""Features of what is learnt from and of what is predicted, each of shape ``(cases, features)``."""
Regress = Callable[..., "Regression"]
"""``regress``, or another with its arguments."""


def _of_state(learnt: Examples, predicted: Examples) -> tuple[Array, Array]:
    standard = Standard.of(learnt.hidden)
    return standard.apply(learnt.hidden), standard.apply(predicted.hidden)


def _of_words(learnt: Examples, predicted: Examples) -> tuple[Array, Array]:
    words = learn(learnt.texts)
    return dense(words, learnt.texts), dense(words, predicted.texts)


def dense(words: Words, texts: Sequence[str]) -> Array:
    """Return the words' weights of texts, shape ``(texts, terms)``."""
    rows = np.zeros((len(texts), len(words)))
    for row, text in zip(rows, texts, strict=True):
        if found := words.weights(text):
            columns, weights = zip(*found, strict=True)
            row[list(columns)] = weights
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A fitted regression: ``features @ weights.T + bias`` are logits, options without a case have ``_ABSENT``."""

    weights: Array
    bias: Array

    def logits(self, features: Array) -> Array:
        """Return normalised logarithms of probabilities, shape ``(cases, options)``."""
        raw = features @ self.weights.T + self.bias
        present = np.isfinite(self.bias)
        raw[:, present] = np.log(np.maximum(softmax(raw[:, present]), np.exp(_ABSENT)))
        raw[:, ~present] = _ABSENT
        return np.asarray(raw)


def regress(features: Array, labels: Labels, *, options: int, strength: float) -> Regression:
    """Fit a multinomial logistic regression; the bias is not regularised.

    Args:
        features: Shape ``(cases, features)``.
        labels: Shape ``(cases,)``, of at least two options.
        options: Number of options; the bias of one without a case is minus infinity.
        strength: Inverse strength of L2, scikit-learn's ``C``.
    """
    # The solution lies in the span of the cases: with more features than cases, fewer coordinates say the same.
    basis = _basis(features)
    model = LogisticRegression(C=strength, max_iter=_ITERATIONS, tol=_TOLERANCE)
    model.fit(features @ basis if basis is not None else features, labels)
    found = model.coef_ @ basis.T if basis is not None else model.coef_
    intercept = model.intercept_
    if len(model.classes_) == 2:  # scikit-learn has one row for both
        found, intercept = np.concatenate([-found / 2, found / 2]), np.array([-intercept[0] / 2, intercept[0] / 2])
    weights, bias = np.zeros((options, features.shape[1])), np.full(options, -np.inf)
    weights[model.classes_], bias[model.classes_] = found, intercept
    return Regression(weights=weights, bias=bias)


def regress_in_order(features: Array, labels: Labels, *, options: int, strength: float) -> Regression:
    """Fit a regression whose options lie on one line: the logit of number k is ``k * slope @ features + bias[k]``.

    Neighbours are then kept apart by one number for all pairs (the adjacent-category model). It has the numbers of one
    option for all of them, so that it needs fewer cases, where the options are steps of one thing. Arguments and bias
    as of ``regress``.
    """
    basis = _basis(features)
    x = features if basis is None else features @ basis
    present = np.unique(labels)
    steps = np.arange(options) - (options - 1) / 2
    truth = labels[:, None] == present

    def cost(numbers: Array) -> tuple[float, Array]:
        slope, bias = numbers[: x.shape[1]], numbers[x.shape[1] :]
        logits = np.outer(x @ slope, steps[present]) + bias
        logits = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(logits).sum(axis=1, keepdims=True)
        off = np.exp(logits) / sums - truth
        loss = (np.log(sums[:, 0]) - logits[truth]).sum() + 0.5 * (slope @ slope) / strength
        slopes = np.concatenate([x.T @ (off @ steps[present]) + slope / strength, off.sum(axis=0)])
        return float(loss) / len(labels), slopes / len(labels)

    start = np.zeros(x.shape[1] + len(present))
    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS, "gtol": _TOLERANCE}).x
    slope = found[: x.shape[1]] if basis is None else basis @ found[: x.shape[1]]
    bias = np.full(options, -np.inf)
    bias[present] = found[x.shape[1] :]
    return Regression(weights=np.outer(steps, slope), bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a head: what is looked at, and which regression of it."""

    features: Features
    regress: Regress

    @property
    def of_words(self) -> bool:
        """Tell whether it looks at the words, and not at the hidden state."""
        return self.features is _of_words


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "state": Part(features=_of_state, regress=regress),
        "words": Part(features=_of_words, regress=regress),
        "state in order": Part(features=_of_state, regress=regress_in_order),
        "words in order": Part(features=_of_words, regress=regress_in_order),
    }
)
"""By name; those in order are for scores."""


def _basis(features: Array) -> Array | None:
    """Orthonormal columns that span the cases, shape ``(features, rank)``; None where there are as many cases."""
    if features.shape[1] <= features.shape[0]:
        return None
    values, vectors = np.linalg.eigh(features @ features.T)
    kept = values > values[-1] * 1e-12
    return np.asarray(features.T @ (vectors[:, kept] / np.sqrt(values[kept])))


def _cross_validate(
    cases: Examples,
    anchors: Examples,
    folds: Folds,
    options: int,
    part: Part,
    counted: _Counter,
) -> tuple[Array, float]:
    """Return held-out logits at the chosen strengths, shape ``(cases, options)``, and the strength for all cases."""
    held_out = {strength: np.zeros((len(cases), options)) for strength in STRENGTHS}
    for fold in range(int(folds.max()) + 1):
        inside = np.flatnonzero(folds == fold)
        learnt = cases.take(np.flatnonzero(folds != fold)).with_more(anchors)
        x, held = part.features(learnt, cases.take(inside))
        for strength in STRENGTHS:
            regression = part.regress(x, learnt.labels, options=options, strength=strength)
            held_out[strength][inside] = regression.logits(held)
            counted.one_more()

    def loss(strength: float, chosen: npt.NDArray[np.bool_]) -> float:
        return metrics.log_loss(np.exp(held_out[strength][chosen]), cases.labels[chosen])

    logits = np.zeros((len(cases), options))
    for fold in range(int(folds.max()) + 1):
        # The strength for a fold is chosen by the other folds' labels, so that its own stay unseen.
        best = min(STRENGTHS, key=lambda strength: loss(strength, folds != fold))
        logits[folds == fold] = held_out[best][folds == fold]
    everywhere = np.ones(len(cases), bool)
    return logits, min(STRENGTHS, key=lambda strength: loss(strength, everywhere))


def _centres(features: Array, labels: Labels, options: int) -> Array:
    """Directions of the options' means, shape ``(options with a direction, features)``."""
    means = [features[labels == option].mean(axis=0) for option in range(options) if (labels == option).any()]
    lengths = [float(np.linalg.norm(mean)) for mean in means]
    found = [mean / length for mean, length in zip(means, lengths, strict=True) if length > 0]
    return np.array(found) if found else np.zeros((1, features.shape[1]))


def _majority(labels: Labels, options: int, folds: Folds) -> Array:
    """Held-out probabilities that are the other folds' shares of the options, each counted once more."""
    probabilities = np.zeros((len(labels), options))
    for fold in range(int(folds.max()) + 1):
        counts = np.bincount(labels[folds != fold], minlength=options) + 1.0
        probabilities[folds == fold] = counts / counts.sum()
    return probabilities
