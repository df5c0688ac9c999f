"""Clients of a server or endpoint, and the files that say what they ask."""
