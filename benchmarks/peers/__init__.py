"""Steelyard beside its peers on one machine, in one run: ``python -m benchmarks.peers --help``."""
