"""What these tests fetch models from."""

from model_sources import cache, packaged, web

__all__ = ["cache", "packaged", "web"]
