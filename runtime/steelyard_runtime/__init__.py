"""The Steelyard runtime: what is baked into an image and serves decisions and chat from one GGUF model.

One way through it: ``http`` (routes, body, error table) -> ``contracts`` (pure codecs) -> ``scoring`` (prompt, slots,
readout) -> ``engine`` (the only importer of llama_cpp). ``services`` joins them.
"""

__version__ = "0.1.0"
