"""Releases: what is deployed, by digest."""
