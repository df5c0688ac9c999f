"""The one exception of these constructs: an input that cannot become working infrastructure."""

from __future__ import annotations


class Refused(ValueError):  # noqa: N818 - reads as what happened: the value was refused
    """A value, or a combination of values, refused at synth.

    The message is one sentence for the person who set the value: what is wrong, the value, and what to do.
    """
