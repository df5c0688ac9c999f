"""Text from tokens: however the bytes are cut, the same text comes out, and stop strings cut where they begin."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.engine.interface import TokenLogprob
from steelyard_runtime.engine.text import Logprob, TextAssembler


def logprob(index: int, data: bytes) -> Logprob:
    return TokenLogprob(token_id=index, bytes=data, logprob=-1.0), ()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def run(data: list[bytes], stop: list[str]) -> tuple[list[str], list[int], bool]:
    assembler, texts, tokens = TextAssembler(stop), [], []
    for index, piece in enumerate(data):
        text, items = assembler.add(piece, logprob(index, piece))
        texts.append(text)
        tokens += [item[0].token_id for item in items]
        if assembler.stopped:
            break
    text, items = assembler.finish()
    return [*texts, text], tokens + [item[0].token_id for item in items], assembler.stopped


TEXT = st.text(alphabet=st.sampled_from("ab\nüñ語🙂"), max_size=30)
CUTS = st.lists(st.integers(0, 200), max_size=12)
STOPS = st.lists(st.text(alphabet=st.sampled_from("ab\nü語"), min_size=1, max_size=4), max_size=3)


@given(TEXT, CUTS)
def test_any_cut_gives_the_same_text_and_every_token(text: str, cuts: list[int]) -> None:
    data = pieces(text.encode(), cuts)
    texts, tokens, stopped = run(data, [])
    assert "".join(texts) == text
    assert tokens == list(range(len(data)))
    assert not stopped


@given(TEXT, CUTS, STOPS)
def test_the_text_ends_where_the_first_stop_string_begins(text: str, cuts: list[int], stop: list[str]) -> None:
    texts, _, stopped = run(pieces(text.encode(), cuts), stop)
    found = [at for s in stop if (at := text.find(s)) >= 0]
    shown = "".join(texts)
    assert stopped == bool(found)
    if not found:
        assert shown == text
        return
    # With several stop strings the one that is complete first ends the text, which may be before min(found).
    assert any(text.startswith(shown + s) for s in stop)
    assert not any(s in shown for s in stop)


@given(TEXT, CUTS, STOPS)
def test_nothing_that_was_shown_is_taken_back(text: str, cuts: list[int], stop: list[str]) -> None:
    shown = ""
    for part in run(pieces(text.encode(), cuts), stop)[0]:
        shown += part
        assert text.startswith(shown)


def test_an_unfinished_character_is_replaced_only_at_the_end() -> None:
    texts, tokens, _ = run([b"a", b"\xf0\x9f"], [])
    assert texts == ["a", "", "\ufffd"]
    assert tokens == [0, 1]


def test_bytes_that_are_no_text_are_replaced_at_once() -> None:
    assert run([b"\xff", b"b"], [])[0] == ["\ufffd", "b", ""]


def test_tokens_of_the_stop_string_are_not_reported() -> None:
    texts, tokens, stopped = run([b"yes", b"\nUs", b"er:", b"more"], ["\nUser:"])
    assert ("".join(texts), tokens, stopped) == ("yes", [0], True)
