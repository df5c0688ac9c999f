"""The engine: one model, one context, one thread. ``llama`` is the only importer of llama_cpp."""
