"""Measuring on a machine that does other things too: comparisons, not clock readings."""
