"""Registered decisions: their contracts, the heads fitted for them, and the policy from probabilities to actions.

Numpy and pydantic only: no HTTP, no llama.cpp, nothing that fits.
"""
