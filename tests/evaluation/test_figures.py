"""Figures of an evaluation, two beside each other, and gates: from a few answers that are counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation_samples import answer, evaluation, judged, sample
from steelyard.evaluation.comparison import compare
from steelyard.evaluation.gating import judged_by, read_gates
from steelyard.evaluation.result import Again, Bin, Counted, Evaluation, read_evaluation, write_evaluation
from steelyard_base.exit_codes import CommandError
from steelyard_base.gates import OF_SCANS, Gates


def test_figures_are_of_answered_cases() -> None:
    found = sample().figures
    assert (found.cases, found.unanswered) == (3, 1)
    assert found.accuracy.value == pytest.approx(2 / 3)
    assert found.confusion == ((1, 0, 0), (1, 1, 0), (0, 0, 0))
    assert found.kinds == {"plain": Counted(cases=2, wrong=0), "hard": Counted(cases=1, wrong=1)}
    assert found.actions == {"automate": Counted(cases=2, wrong=0), "review": Counted(cases=1, wrong=1)}
    assert found.automated is not None
    assert (found.automated.value, found.automated_wrong and found.automated_wrong.value) == (2 / 3, 0.0)
    assert found.reliability[5] == Bin(
        low=0.5, high=0.6, cases=1, probability=0.6, accuracy=found.reliability[5].accuracy
    )
    assert sum(each.cases for each in found.reliability) == 3
    assert found.risk_coverage[-1].risk == pytest.approx(1 / 3)
    assert (found.p50_ms, found.p95_ms, found.evaluated_tokens) == (20.0, 90.0, 20.0)
    assert found.cost_per_1000 == pytest.approx(3.6 * 10 / 1000 * 1000 / 3600)


def test_flips_and_noise() -> None:
    found = sample().figures
    assert found.order_flips is not None
    assert (found.order_flips.asked, found.order_flips.flipped) == (2, 1)
    assert found.paraphrase_flips is not None
    assert (found.paraphrase_flips.asked, found.paraphrase_flips.flipped) == (1, 1)
    assert found.injection_flips is not None
    assert (found.injection_flips.asked, found.injection_flips.flipped) == (2, 1), (
        "another option is not the attacker's"
    )
    assert found.injection_flips.kinds["claim"] == Counted(cases=2, wrong=1)
    assert found.noise is not None
    assert (found.noise.moved, found.noise.largest_shift) == (0, pytest.approx(0.02))


def test_an_answer_that_was_kept_whole_shows_no_noise() -> None:
    kept = answer([1.0, 0.0, 0.0]).model_copy(update={"cached": True})
    found = evaluation([judged(1, "billing", kept)], repeated=[Again(case=1, answer=kept)]).figures
    assert (found.cached, found.noise) == (1, None)


def test_what_was_not_asked_has_no_figure() -> None:
    found = evaluation([judged(1, "billing", answer([1.0, 0.0, 0.0]))]).figures
    assert (found.order_flips, found.paraphrase_flips, found.injection_flips, found.noise) == (None,) * 4
    assert (found.automated, found.automated_wrong, found.cost_per_1000) == (None,) * 3


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    write_evaluation(path, sample())
    assert read_evaluation(path) == sample()
    said = json.loads(path.read_text())
    for change in ({"format": 2}, {"further": 1}, {"judged": [{"case": 0}]}):
        path.write_text(json.dumps(said | change))
        with pytest.raises(CommandError, match="is no evaluation"):
            read_evaluation(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda said: said["decision"]["options"].pop(), "has 3 probabilities, and there are 2 options"),
        (lambda said: said["decision"].update(options=[]), "the options are ; they are two or more"),
        (lambda said: said["judged"][0]["answer"]["probabilities"].pop(), "an answer to case 1 has 2 probabilities"),
        (lambda said: said["repeated"][0]["answer"].update(probabilities=[]), "has 0 probabilities"),
        (lambda said: said["attacked"][0]["answer"]["probabilities"].append(0.5), "has 4 probabilities"),
        (lambda said: said["judged"][0].update(label="gone"), "case 1 has the label 'gone', which is none of billing,"),
        (lambda said: said["figures"]["confusion"].pop(), "the table of confusion is not of the 3 options"),
        (lambda said: said["figures"]["confusion"][1].pop(), "the table of confusion is not of the 3 options"),
        (lambda said: said.update(price_per_hour=None), "price_per_hour and cost_per_1000 belong together"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    changed = sample().model_dump(mode="json")
    change(changed)
    (tmp_path / "e.json").write_text(json.dumps(changed))
    with pytest.raises(CommandError, match=said):
        read_evaluation(tmp_path / "e.json")


def ten(wrong: int, *, shift: float = 0.0, **target: str) -> Evaluation:
    """Ten cases of which the first ones are wrong."""
    cases = [
        judged(n, "billing", answer([0.2 - shift, 0.8 + shift, 0.0] if n <= wrong else [0.9, 0.1, 0.0]))
        for n in range(1, 11)
    ]
    return evaluation(cases, repeated=[Again(case=10, answer=answer([0.89, 0.11, 0.0]))], **target)


def test_a_difference_is_noise_until_it_is_not() -> None:
    few, many = compare(ten(0, readout="head"), ten(2)), compare(ten(0), ten(8))
    assert (few.mended, few.broken, len(few.moved)) == (2, 0, 2)
    assert few.verdict.startswith("The difference is noise: 2 answers became right and 0 wrong")
    assert few.differs == (("readout", "letters", "head"),)
    assert many.verdict.startswith("This one is better")
    assert compare(ten(8), ten(0)).verdict.startswith("This one is worse")
    assert compare(ten(3), ten(3)).verdict == "No answer moved."


def test_shifts_are_held_against_the_noise_of_both() -> None:
    found = compare(ten(3, shift=0.005), ten(3))
    assert (found.floor, found.beyond_floor) == (pytest.approx(0.01), 0)
    assert compare(ten(3, shift=0.02), ten(3)).beyond_floor == 3


def test_evaluations_of_other_things_are_not_compared() -> None:
    other = evaluation([judged(70, "billing", answer([1.0, 0.0, 0.0]))])
    with pytest.raises(CommandError, match="no case in common"):
        compare(ten(1), other)
    two = evaluation([judged(1, "a", answer([1.0, 0.0]))], options=("a", "b"))
    with pytest.raises(CommandError, match="has the options a, b"):
        compare(ten(1), two)


def gated(tmp_path: Path, text: str) -> Gates:
    path = tmp_path / "gates.toml"
    path.write_text(text)
    return read_gates(path)


EVERY = {
    "cases_at_least": 3,
    "accuracy_at_least": 0.6,
    "macro_f1_at_least": 0.1,
    "log_loss_at_most": 2.0,
    "brier_at_most": 2.0,
    "ece_at_most": 1.0,
    "automated_at_least": 0.5,
    "automated_wrong_at_most": 0.0,
    "order_flips_at_most": 0.5,
    "paraphrase_flips_at_most": 1.0,
    "injection_flips_at_most": 0.5,
    "noise_at_most": 0.1,
    "p50_ms_at_most": 20.0,
    "p95_ms_at_most": 90.0,
    "tokens_at_most": 20.0,
    "cost_per_1000_at_most": 0.1,
    "accuracy_lost_at_most": 0.0,
}


def test_every_gate_has_a_figure(tmp_path: Path) -> None:
    assert set(EVERY) | set(OF_SCANS) == set(Gates.model_fields)
    said = "other = 1\n[gates]\n" + "".join(f"{name} = {value}\n" for name, value in EVERY.items())
    results = judged_by(gated(tmp_path, said), sample(), compare(sample(), sample()))
    assert [each.gate for each in results if not each.kept] == ["refused_cases_at_most"]


def test_a_missed_gate_is_told_with_both_numbers(tmp_path: Path) -> None:
    gates = gated(tmp_path, "[gates]\naccuracy_at_least = 0.9\naccuracy_lost_at_most = 0.1\n")
    _, accuracy, lost = judged_by(gates, sample(), None)
    assert (accuracy.kept, accuracy.sentence) == (False, "accuracy, at least 0.9: it is 0.6667")
    assert (lost.kept, lost.sentence) == (False, "accuracy lost, at most 0.1: it was not measured")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy_at_least = 0.9", "sets no gate"),
        ("[gates]", "sets no gate"),
        ("[gates]\naccuracy = 0.9", "gates.accuracy"),
        ("[gates]\naccuracy_at_least = 90", "less than or equal to 1"),
        ("[gates]\naccuracy_at_least = true", "gates.accuracy_at_least"),
        ("[gates", "cannot read the gates"),
    ],
)
def test_a_file_of_gates_is_read_strictly(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        gated(tmp_path, text)
