"""Deployments: what is deployed, in which order, and what is left after it was destroyed."""
