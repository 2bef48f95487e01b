"""Pool of the tallies of windows: earlier windows count less."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally

FORGETTING = 0.9  # weight of a window relative to the next one, at most 19 windows' worth in all


def pool(windows: Sequence[Collected], weights: Sequence[float] | None = None) -> Collected:
    """Return one round with the information of several ones.

    A window with n reports has the weight w. All weights are scaled by Σ w n / Σ w² n, so that the pool has as many
    reports, (Σ w n)² / Σ w² n, as its variance has. Counts are rounded to integers.

    Parameters
    ----------
    windows : sequence of Collected
        At least one, of tallies, with the same encoding and mechanism.
    weights : sequence of float, optional
        Not negative, and one positive. Equal by default.

    Raises
    ------
    UnfitRound
        The rounds differ in their encoding or mechanism.
    """
    first = windows[0].spec
    if any((each.spec.encoding, each.spec.mechanism) != (first.encoding, first.mechanism) for each in windows):
        raise UnfitRound("rounds can be pooled if they have the same encoding and mechanism: name rounds of one grid")
    scaled = scaled_weights([each.tally.n_reports for each in windows], weights)
    counts = sum(w * each.tally.counts for w, each in zip(scaled, windows, strict=True))
    reports = sum(w * each.tally.reports for w, each in zip(scaled, windows, strict=True))
    whole = np.rint(reports).astype(np.int64)
    return Collected(first, Tally(np.minimum(np.rint(counts).astype(np.int64), whole[:, None]), whole))


def scaled_weights(reports: Sequence[float], weights: Sequence[float] | None) -> NDArray[np.float64]:
    """Return weights, scaled by Σ w n / Σ w² n, for windows with n reports. They are equal by default."""
    given = np.ones(len(reports)) if weights is None else np.asarray(weights, dtype=np.float64)
    n = np.array(reports, dtype=np.float64)
    total = float((given * given * n).sum())
    return given * (float((given * n).sum()) / total) if total else given


def forgetting_weights(windows: Iterable[int], *, first: int, now: int) -> dict[int, float]:
    """Return λ^(now - t) for each measured window t from `first` on."""
    return {window: FORGETTING ** (now - window) for window in windows if first <= window <= now}
