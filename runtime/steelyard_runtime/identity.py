"""The identity in every answer: model file, llama.cpp, hardware, prompt; by hashes, to be checked."""

from __future__ import annotations

import functools
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard_runtime import __version__
from steelyard_runtime.engine.interface import EngineIdentity
from steelyard_runtime.prompt_identity import PromptIdentity, prompt_identities, wording_hashes
from steelyard_runtime.scoring.strategies import STRATEGIES, Strategies
from steelyard_runtime.templates.answer_position import PLAIN, AnswerPosition

CATALOGUE_SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one server process.

    Attributes:
        model_id: The name reported to callers.
        engine: The engine's part.
        template: The chat template's name, and its sha256. ``"model"`` is the file's default, ``"plain"`` none.
        template_note: Why it is this one, where that is not obvious; or "".
        answer_position: Where the template's prompts end, and what is added there.
        refusal: Why no decision can be read, or "".
        prompts: The words of decisions' prompts, by readout and layout; those of the first readout come first.
        decisions: The registered decisions, JSON-ready.
        slots: Options that one question may have on this model.
        created: Unix time of the model file.
    """

    model_id: str
    engine: EngineIdentity
    template: tuple[str, str]
    slots: int
    created: int
    prompts: tuple[PromptIdentity, ...]
    template_note: str = ""
    answer_position: AnswerPosition = PLAIN
    refusal: str = ""
    decisions: tuple[dict[str, Any], ...] = ()

    @property
    def release_date(self) -> str:
        """Date of the model file, ``YYYY-MM-DD``."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.created))

    def summary(self) -> dict[str, Any]:
        """The part that goes into every answer, JSON-ready."""
        return {
            "id": self.model_id,
            "sha256": self.engine.model.sha256,
            "llama_cpp": self.engine.llama_cpp,
            "binding": self.engine.binding,
            "runtime": f"steelyard {__version__}",
            "hardware": hardware(),
            "device": self.engine.device,
            "threads": self.engine.threads,
            "prompt_versions": self._versions(),
            "exact": self.engine.probe.exact,
        }

    def basis(self) -> dict[str, Any]:
        """Return what an answer depends on besides request and decision, JSON-ready: equal ones give equal bits."""
        engine = self.engine
        return {
            "model_sha256": engine.model.sha256,
            "template_sha256": self.template[1],
            "runtime": f"steelyard {__version__}",
            "llama_cpp": engine.llama_cpp,
            "binding": engine.binding,
            "hardware": hardware(),
            "system_info": engine.system_info,
            "device": engine.device,
            "gpu_layers": engine.gpu_layers,
            "threads": engine.threads,
            "batch_tokens": engine.batch_tokens,
            "context_tokens": engine.model.context_tokens,
            "exact": engine.probe.exact,
        }

    def full(self) -> dict[str, Any]:
        """Everything, for ``GET /v1/identity``."""
        model, probe = self.engine.model, self.engine.probe
        return {
            **self.summary(),
            "model": {
                "file": model.file_name,
                "size_bytes": model.size_bytes,
                "sha256": model.sha256,
                "architecture": model.architecture,
                "description": model.description,
                "parameters": model.parameters,
                "vocabulary": model.vocabulary,
                "trained_context_tokens": model.trained_context,
                "pooling": model.pooling,
            },
            "prompt": {
                "versions": self._versions(),
                "readout": self.prompts[0].strategy,
                "readouts": self._readouts(),
                "wordings": wording_hashes(),
                "template": self.template[0],
                "template_sha256": self.template[1],
                "template_note": self.template_note,
                "answer_position": {
                    "rule": self.answer_position.rule,
                    "appended": self.answer_position.appended,
                    "note": self.refusal or self.answer_position.sentence,
                },
                "option_slots": self.slots,
            },
            "decisions": list(self.decisions),
            "engine": {
                "llama_cpp": self.engine.llama_cpp,
                "binding": self.engine.binding,
                "system_info": self.engine.system_info,
                "device": self.engine.device,
                "gpu_layers": self.engine.gpu_layers,
                "threads": self.engine.threads,
                "context_tokens": model.context_tokens,
                "sequences": self.engine.sequences,
                "batch_tokens": self.engine.batch_tokens,
            },
            "exactness": {
                "memory": probe.memory,
                "prefix_sharing": probe.prefix_sharing,
                "exact": probe.exact,
                "noise_floor_logits": None if math.isnan(probe.noise_floor) else probe.noise_floor,
                "comparisons": probe.comparisons,
                "note": probe.note,
            },
        }

    def _versions(self) -> dict[str, str]:
        """Of the first readout, by layout."""
        return {each.layout: self._version(each) for each in self.prompts if each.strategy == self.prompts[0].strategy}

    def _readouts(self) -> dict[str, dict[str, dict[str, str]]]:
        """Version and hash of every readout's words, by its name and the layout."""
        found: dict[str, dict[str, dict[str, str]]] = {}
        for each in self.prompts:
            words = {"version": self._version(each), "sha256": each.sha256}
            found.setdefault(each.strategy, {})[each.layout] = words
        return found

    def _version(self, words: PromptIdentity) -> str:
        return words.version + (self.answer_position.version if words.in_template else "")


@functools.cache
def hardware() -> str:
    """The processor's name, or its architecture where no name can be read."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{platform.machine()} {line.split(':', 1)[1].strip()}"
    except OSError:
        pass
    return platform.machine()


def identify(
    engine: EngineIdentity,
    *,
    model_id: str | None,
    template: tuple[str, str],
    slots: int,
    strategies: Strategies = STRATEGIES,
    template_note: str = "",
    answer_position: AnswerPosition = PLAIN,
    refusal: str = "",
    decisions: tuple[dict[str, Any], ...] = (),
) -> Identity:
    """The identity of a running engine; without ``model_id`` the file's name stands in."""
    path = Path(engine.model.path)
    name = model_id or path.name.removesuffix(CATALOGUE_SUFFIX)
    created = int(path.stat().st_mtime) if path.exists() else 0
    return Identity(
        model_id=name,
        engine=engine,
        template=template,
        slots=slots,
        created=created,
        prompts=prompt_identities(strategies),
        template_note=template_note,
        answer_position=answer_position,
        refusal=refusal,
        decisions=decisions,
    )
