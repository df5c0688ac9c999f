"""llama.cpp: the only loader of libllama, a typed and checked surface over the C API. No policy here.

``library`` is the loaded libllama, ``model`` the weights and their vocabulary, ``context`` what evaluates, ``sampler``
what chooses tokens. Nothing here is safe to call from two threads at once, except ``Vocabulary``, which only reads.
"""

from steelyard_runtime.engine.llama.context import (
    CACHE_TYPES,
    NODES_BETWEEN_STOPS,
    OWN_PAGES_FROM,
    CacheType,
    Context,
    ContextShape,
    Run,
    Snapshot,
    logits_of_file,
    opened,
    room,
)
from steelyard_runtime.engine.llama.library import (
    BINDING,
    BUILD,
    LIBRARIES,
    L,
    LlamaError,
    default_values,
    gpu_available,
    llama_version,
    struct_sizes,
    system_info,
)
from steelyard_runtime.engine.llama.model import Model, Vocabulary
from steelyard_runtime.engine.llama.sampler import SEEDS, Sampler

__all__ = [
    "BINDING",
    "BUILD",
    "CACHE_TYPES",
    "LIBRARIES",
    "NODES_BETWEEN_STOPS",
    "OWN_PAGES_FROM",
    "SEEDS",
    "CacheType",
    "Context",
    "ContextShape",
    "L",
    "LlamaError",
    "Model",
    "Run",
    "Sampler",
    "Snapshot",
    "Vocabulary",
    "default_values",
    "gpu_available",
    "llama_version",
    "logits_of_file",
    "opened",
    "room",
    "struct_sizes",
    "system_info",
]
