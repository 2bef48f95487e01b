"""Sentences that compare verdicts and intervals of runs with their true agreement."""

import numpy as np
from numpy.typing import ArrayLike

ROUNDING = 1e-3  # tolerance at the ends of a stated interval


def describe_verdicts(name: str, true: ArrayLike, verdicts: ArrayLike) -> str:
    """Return how many runs of low, of fair and of high agreement have which verdict.

    Parameters
    ----------
    name : str
        Name of the agreement in the sentence.
    true : array-like of shape (n,)
        Agreement of each run.
    verdicts : array-like of str, shape (n,)
    """
    true, verdicts = np.asarray(true), np.asarray(verdicts)
    poor, good, high, reliable = true < 0.4, true > 0.8, true >= 0.9, verdicts == "reliable"
    return (
        f"of {name} < .4 ({poor.sum()}) not doubtful {(verdicts[poor] != 'doubtful').sum()}; of {name} > .8 "
        f"({good.sum()}) doubtful {(verdicts[good] == 'doubtful').sum()}; reliable {reliable.sum()}, of these "
        f"{name} >= .7 {(true[reliable] >= 0.7).sum()}; of {name} >= .9 ({high.sum()}) reliable {reliable[high].sum()}"
    )


def describe_intervals(true: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> str:
    """Return the share of runs with their agreement inside of the stated interval, and above it."""
    true, lower, upper = np.asarray(true), np.asarray(lower), np.asarray(upper)
    above = true > upper + ROUNDING
    inside = (true >= lower - ROUNDING) & ~above
    return f"inside the interval {inside.mean():.2f}, above it {above.mean():.2f}"
