"""The worked examples: no finding, cases of every kind; a head that fits its contract and cases, and its figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from steelyard.decisions.folder import CASES_FILE, read_cases, read_contract
from steelyard.decisions.lint import lint
from steelyard.decisions.workflow import read_baseline
from steelyard.models.catalogue import catalogue
from steelyard_runtime.decisions.head import load_head

DECISIONS = Path(__file__).parents[2] / "decisions"
KINDS = {
    "support-route": ("hard", "ambiguous", "multilingual", "adversarial", "out of scope"),
    "next-tool": ("hard", "ambiguous", "multilingual", "adversarial", "out of scope"),
    "expense-approval": ("hard", "ambiguous", "multilingual", "adversarial", "out of scope"),
    "moderation": ("hard", "ambiguous", "multilingual", "adversarial"),  # every post has a severity
}


def test_every_folder_is_an_example():
    assert {each.name for each in DECISIONS.iterdir()} == set(KINDS)
    assert {read_contract(DECISIONS / name).type for name in KINDS} == {"choice", "score", "yesno"}


@pytest.mark.parametrize("name", KINDS)
def test_an_example_has_no_finding_and_cases_of_every_kind(name):
    contract = read_contract(DECISIONS / name)
    cases = read_cases(DECISIONS / name / CASES_FILE, contract)
    assert lint(contract, cases.cases) == []
    assert len(cases) >= 150
    kinds = Counter(case.kind for case in cases.cases)
    assert [kind for kind in KINDS[name] if kinds[kind] < 4] == []
    assert f" {len(cases)} cases" in (DECISIONS / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KINDS)
def test_its_head_and_baseline_belong_to_its_contract_cases_and_model(name):
    folder = DECISIONS / name
    contract = read_contract(folder)
    head, baseline = load_head(folder), read_baseline(folder)
    bound = head.description.bound
    head.check(
        contract=contract,
        model_sha256=catalogue()["gemma-3-270m"].file.sha256,
        prompt_sha256=bound.prompt_sha256,
        llama_cpp=bound.llama_cpp,
    )
    assert baseline is not None
    assert (baseline.contract, baseline.question_sha256) == (contract.full_name, contract.question_sha256)
    assert head.description.cases_sha256 == baseline.cases_sha256 == read_cases(folder / CASES_FILE, contract).sha256
    assert baseline.accuracy == head.description.measured.head.accuracy


@pytest.mark.parametrize("name", KINDS)
def test_its_page_has_the_accepted_figures(name):
    page = " ".join((DECISIONS / name / "README.md").read_text(encoding="utf-8").split())
    baseline = read_baseline(DECISIONS / name)
    assert baseline is not None
    found = baseline.accuracy
    assert f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})" in page
