"""Texts that try to steer a decision: `python -m benchmarks.text_attacks --help`."""
