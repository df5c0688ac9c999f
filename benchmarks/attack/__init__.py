"""Attacks on a server on loopback: what each costs the attacker, the server, and another caller."""
