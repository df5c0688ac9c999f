"""Learning curves are of held-out cases, and go on as their mistakes fall."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from steelyard.decisions import fitting
from steelyard.decisions.curve import NEXT, gain, learning_curve, svg
from steelyard.decisions.fitting import Examples, validate

NOTHING = Examples(hidden=np.zeros((0, 8), np.float32), texts=(), labels=np.zeros(0, np.int64))


@pytest.fixture(scope="module")
def validated():
    """Cases of which a few teach something, and more teach more."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(3), 30))
    hidden = (rng.standard_normal((90, 8)) + 1.5 * rng.standard_normal((3, 8))[labels]).astype(np.float32)
    cases = Examples(hidden=hidden, texts=tuple(f"case {number}" for number in range(90)), labels=labels)
    with pytest.MonkeyPatch.context() as patched, threadpool_limits(1):
        patched.setattr(fitting, "STRENGTHS", (10.0,))
        return validate(cases, anchors=NOTHING, options=3)


def test_more_labels_are_better_and_the_last_point_is_the_heads_own(validated):
    found = learning_curve(validated, {"state": 1.0})
    assert found.labels == (9, 18, 36, 72)
    assert found.accuracy[0].value < found.accuracy[-1].value
    own = (validated.logits["state"].argmax(axis=1) == validated.cases.labels).mean()
    assert found.accuracy[-1].value == own
    assert found.next_points.low <= found.next_points.value <= found.next_points.high
    assert found.to_json()["next_labels"] == NEXT


@settings(max_examples=30)
@given(height=st.floats(0.1, 1.0), slope=st.floats(-0.9, 0.0))
def test_mistakes_that_fall_as_a_power_go_on_as_that_power(height, slope):
    labels = np.array([10, 20, 40, 80])
    expected = height * (80.0**slope - (80.0 + NEXT) ** slope)
    assert gain(labels, 1 - height * labels**slope, total=10**9) == pytest.approx(expected, abs=1e-9)


def test_mistakes_that_do_not_fall_promise_nothing():
    labels = np.array([10, 20, 40])
    assert gain(labels, np.array([0.8, 0.7, 0.6]), total=50) == 0.0
    assert gain(labels, np.ones(3), total=50) == pytest.approx(0.0, abs=1e-12)
    assert gain(labels[:1], np.array([0.5]), total=50) == 0.0


def test_the_figure_is_xml_and_says_what_it_shows(validated):
    found = learning_curve(validated, {"state": 1.0})
    root = ET.fromstring(svg({"head <1>": found, "bag of words": found}, title='Accuracy & "labels"'))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"head <1>", "bag of words", "labels", "72", "0.8"} <= set(texts)
    assert root.attrib["aria-label"] == 'Accuracy & "labels"'
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
