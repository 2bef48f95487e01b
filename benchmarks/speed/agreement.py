"""Answers that are compared before anything is timed."""

from typing import Any

import numpy as np


class Disagreement(AssertionError):
    """Two ways to one answer gave two; says by how much."""


def agree(what: str, ours: Any, theirs: Any, within: float = 0.0) -> None:
    """Raise unless both are equal but for this share of the largest of theirs.

    Parameters
    ----------
    what : str
        For the message.
    ours, theirs : array-like
        Of one shape.
    within : float
        0 asks for the last bit.

    Raises
    ------
    Disagreement
    """
    left, right = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if left.shape != right.shape:
        raise Disagreement(f"{what}: of shape {left.shape} here and {right.shape} there")
    scale = float(np.abs(right).max(initial=0.0))
    gap = float(np.abs(left - right).max(initial=0.0))
    if not gap <= within * scale:  # also where one is no number
        raise Disagreement(f"{what}: off by {gap:.3g}, {within * scale:.3g} is allowed")


def near(what: str, estimates: Any, truth: Any, deviation: float, deviations: float = 7.0) -> None:
    """Raise where an estimate is further from the truth than so many standard deviations of its noise."""
    gap = float(np.abs(np.asarray(estimates) - np.asarray(truth)).max())
    if not gap <= deviations * deviation:
        raise Disagreement(f"{what}: off by {gap:.3g}, its noise has the standard deviation {deviation:.3g}")
