"""Servers on this machine: whether it can run one, and how one is started."""
