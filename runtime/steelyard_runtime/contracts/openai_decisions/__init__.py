"""OpenAI Decisions: a list of predicates, choices and scores on one input.

What the model reads:

- ``input`` as a string, verbatim. As a list, one block per item, in order; every line of an item's content after the
  first is indented by two spaces, so that no content can pass for the start of another item::

      user: My order is late.
        It was due on Monday.
      function_call name="track" call_id="c1": {"order":7}
      function_call_output call_id="c1": in transit
      assistant phase="final_answer": It arrives today.

  Values in a header are JSON strings. ``phase``, ``status`` and ``namespace`` are shown when given; an item's ``id``
  only identifies it to the API and is not. Parts are joined by line breaks, ``input_json`` as compact JSON, a refusal
  as ``refusal: ...``. Messages of every role are evidence, never instructions to this server. JSON parts are accepted
  wherever text parts are.
- A predicate has the options ``yes`` and ``no``. A choice shows its value, a level its label, followed by
  ``: description`` when there is one. A boolean is shown as ``true`` or ``false``; when a string of the same spelling
  is also a choice, the strings are shown as JSON strings.
- A question of the type ``registered`` is ours: ``{"type": "registered", "use": "support-route@3"}`` asks a registered
  decision. Its answer has the type that the decision's contract has, and an action.

Caching: ``prompt_cache_breakpoint``, ``prompt_cache_key`` and ``prompt_cache_options`` (``mode`` implicit, ``ttl``) are
accepted as hints. They change no answer; the server keeps the prefixes that its memory allows, by caller, at boundaries
of its own, and ``usage`` says what was reused. The mode ``explicit`` is refused: a request cannot switch the reuse of
its own prefixes off. ``safety_identifier`` asks for nothing; it is accepted, not stored and not shown to the model.
"""

from __future__ import annotations

from pydantic import TypeAdapter

from steelyard_runtime.contracts.contract import DecisionContract, Shape
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.contracts.openai_decisions.answer import Response, encode
from steelyard_runtime.contracts.openai_decisions.golden import GOLDEN
from steelyard_runtime.contracts.openai_decisions.request import Request
from steelyard_runtime.contracts.openai_decisions.text import decode

CONTRACT = DecisionContract(
    name="openai_decisions",
    prefix="OpenAIDecisions",
    paths={"/v1/decisions": "Decisions: OpenAI"},
    shape=Shape(
        title="OpenAI Decisions",
        example="{'model': ..., 'input': ..., 'questions': [...]}",
        fields=("questions",),
        holds=list,
    ),
    request=Request,
    answer=TypeAdapter(Response),
    errors=OPENAI,
    decode=decode,
    encode=encode,
    golden=GOLDEN,
)
