"""Decisions of a folder: their labelled cases, checks, fitting and evaluation, on this machine."""
