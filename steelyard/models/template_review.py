"""Warnings about a chat template that tries more than writing a prompt.

A template is a program that comes with the weights. Our server runs it in a sandbox that refuses all of this, so these
are warnings: another program may run the same file without one.
"""

from __future__ import annotations

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.templates.limits import COMPILE_CPU_S, MEMORY_MIB
from steelyard_runtime.templates.process import shared

_TOO_MUCH = {
    "time": f"it takes more than {COMPILE_CPU_S:g} s of processor time",
    "memory": f"it takes more than {MEMORY_MIB} MiB",
    "died": "the process that parses it ended",
}


def review(source: str | None) -> list[str]:
    """Find what in a chat template could execute something, a sentence each; the template is parsed and never run.

    It is parsed in the child process that would render it, within the same limits.

    Args:
        source: Jinja source, as the GGUF file carries it, or None.

    Raises:
        CommandError: Jinja is not installed.
    """
    if source is None:
        return []
    try:
        import jinja2  # noqa: F401 - the child's, which could only say that it ended
    except ImportError as error:
        raise CommandError(
            "jinja2 is not installed in this Python environment",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[models]'.",
        ) from error
    answer = shared().submit({"want": "review", "source": source}, convert=dict).result()
    if fault := answer.get("fault"):
        return [f"the chat template cannot be parsed: {_TOO_MUCH.get(fault) or answer['words']}"]
    return [
        f"the chat template, line {line}, {what}; Steelyard's sandbox refuses it, another program may run it"
        for line, what in answer["findings"]
    ]
