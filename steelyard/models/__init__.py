"""Pinned models: the catalogue, fetching, verifying, packaging and publishing them."""
