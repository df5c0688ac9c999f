"""The limits of one request, which a test sends requests at and above, and of files: docs/reference/limits.md."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard_runtime.contracts.embeddings import MAX_INPUTS
from steelyard_runtime.contracts.openai_text import MAX_LOGIT_BIASES, MAX_STOP_STRINGS
from steelyard_runtime.contracts.option_names import COMPARED
from steelyard_runtime.contracts.validation import MAX_DETAILS, MAX_FAULTS
from steelyard_runtime.engine import gguf_header, json_output, start, trial
from steelyard_runtime.engine.places import NAMED_LATELY_S
from steelyard_runtime.engine.tokenizer import STRETCH_BYTES
from steelyard_runtime.errors import Kind
from steelyard_runtime.services.kept_ends import KEPT_BYTES
from steelyard_runtime.settings import MAX_INTEGER_DIGITS, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound of one request.

    Attributes:
        name: Short and unique.
        counted: What is counted, and when.
        most: The largest number that is accepted, where no setting says it.
        setting: The setting that says it.
        error: The kind of the refusal.
    """

    name: str
    counted: str
    error: Kind
    most: int | None = None
    setting: str | None = None

    def allowed(self, settings: Settings) -> int:
        """Return the largest number that a server with these settings accepts."""
        value = self.most if self.setting is None else getattr(settings, self.setting)
        return int(value or 0)


LIMITS = (
    Limit(
        name="body",
        counted="Bytes of the body, while it arrives.",
        setting="max_body_bytes",
        error=Kind.BODY_TOO_LARGE,
    ),
    Limit(
        name="structure",
        counted="Characters `[ ] { } : ,` of the body outside of strings, before it is parsed.",
        setting="max_json_structure",
        error=Kind.BODY_TOO_LARGE,
    ),
    Limit(
        name="depth",
        counted="Arrays and objects inside each other, before the body is parsed.",
        setting="max_json_depth",
        error=Kind.MALFORMED_JSON,
    ),
    Limit(
        name="integer",
        counted="Digits of an integer.",
        most=MAX_INTEGER_DIGITS,
        error=Kind.MALFORMED_JSON,
    ),
    Limit(
        name="questions",
        counted="Questions or decisions, before the first of them is looked at.",
        setting="max_questions",
        error=Kind.INVALID,
    ),
    Limit(
        name="options",
        counted="Options of one question, before the first of them is looked at.",
        setting="max_options",
        error=Kind.INVALID,
    ),
    Limit(name="choices", counted="`n` of a chat or completion.", setting="max_choices", error=Kind.INVALID),
    Limit(
        name="stop strings",
        counted="Texts in `stop`.",
        most=MAX_STOP_STRINGS,
        error=Kind.INVALID,
    ),
    Limit(
        name="logit biases",
        counted="Tokens in `logit_bias`, before the first of them is looked at.",
        most=MAX_LOGIT_BIASES,
        error=Kind.INVALID,
    ),
    Limit(
        name="inputs",
        counted="Texts of an embeddings request.",
        most=MAX_INPUTS,
        error=Kind.INVALID,
    ),
    Limit(
        name="text",
        counted="Bytes of a prompt's or a state's text, before it is tokenized; fewer where even these cannot fit into "
        "the context, see below.",
        setting="max_text_bytes",
        error=Kind.OVER_BUDGET,
    ),
    Limit(
        name="prompt",
        counted="Tokens of a prompt; of a chat, with the tokens to generate.",
        setting="context_tokens",
        error=Kind.OVER_BUDGET,
    ),
)

_STRETCHES = ", ".join(f"{size} for {kind.upper()}" for kind, size in STRETCH_BYTES.items())
NOTES = f"""\
A request at a limit is served, and one above it refused with the named [kind](errors.md) and, where a number was
counted, with that number. What is counted first is first in the table, and nothing is parsed, tokenized or rendered
before its limit was checked.

**Text by its length.** No text of a prompt is tokenized that has more bytes than the context has tokens, times the
longest token of the model's vocabulary: it certainly has too many tokens. Tokenizers that fold or drop characters (WPM,
UGM) have no such bound; theirs is 262144 bytes. Up to 65536 bytes tokens are counted anyway, so that the refusal has
both numbers. A text is tokenized in chunks of 2 KiB and a request's state once, whatever the number of its questions;
all texts of one request together have at most `max_text_bytes`, each counted once. A stretch without a place where
the text may be cut (a run of one character, such as spaces) has a longest length in bytes:
{_STRETCHES}.

**Places.** As many requests as `queue_limit` may be prepared for the engine at the same time, and large bodies (more
than 64 KiB) of `max_waiting_mib` together; callers without a name have the part `unnamed_share` of both. More are
refused as `busy`, with `retry_after_ms`. Within these, callers take turns, small requests are not behind large ones,
and the time until `deadline_s` counts from a request's arrival: it is refused as `deadline` if it comes while the
request waits. What a client that left had asked for is not begun, and ends at the next chunk.

Of the places of running chats (`chats`), callers without a name may hold the part `unnamed_share`, at least one, once a
request of a caller with a name came in the last {NAMED_LATELY_S / 60:.0f} minutes, whatever it asked for; without one
they may hold all. So the first caller with a name after that may find every place taken: the next place that becomes
free is its own, and decisions wait for no chat.

**Names of options.** A name has no control characters, something of it is seen, and no two of a decision look the same
([what looks the same](../explanation/attacks-on-text.md#what-a-text-cannot-do)); names of more than {COMPARED}
characters are compared character by character.

**Faults.** An answer lists the first {MAX_DETAILS} faults of a body and the number of the others; after {MAX_FAULTS}
wrong or unknown fields checking ends.

**JSON schemas.** A schema of `response_format` has at most {json_output.LARGEST_SCHEMA} bytes as JSON, no number in it
is beyond {json_output.LARGEST_NUMBER} either way, and `multipleOf` is at most {json_output.FINEST_MULTIPLE} times its
last digit.

**Kept ends.** The hidden states, texts and tokens of the last prompts that are kept for a question asked again take
{KEPT_BYTES >> 20} MiB together; what was used longest ago leaves.

**Model files.** A GGUF header has at most {gguf_header.MAX_HEADER_BYTES >> 20} MiB, {gguf_header.MAX_KEYS} keys,
{gguf_header.MAX_TENSORS} tensors of {gguf_header.MAX_DIMENSIONS} dimensions, names of {gguf_header.MAX_NAME_BYTES}
bytes, and {gguf_header.MAX_ARRAY_STRINGS} strings in its arrays; longer values than
{gguf_header.MAX_KEPT_STRING_BYTES} bytes are not kept, and what is kept has {gguf_header.MAX_KEPT_BYTES >> 20} MiB.
The model is then tried in a child process, for {trial.LEAST_SECONDS:.0f} s and a second more for each
{trial.BYTES_PER_SECOND // 10**6} MB of its files, in {trial.LEAST_MEMORY >> 30} GiB of memory of its own and
{trial.MEMORY_PER_FILE_BYTE} bytes more for each of its files' (on a GPU memory has no limit). The self-test ends within
{start.SELF_TEST_TIMEOUT_S:.0f} s. What is beyond ends the start with a sentence that names the file."""
