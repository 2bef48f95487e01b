"""What a round over published centroids told, in either of its two forms: one signed bit, or centroid and side."""

from math import inf

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import Heard, hear
from clustering.decoders import decoder
from clustering.errors import UnfitRound
from clustering.plan import Collected
from sfumato.specs import LATTICE, CentroidSignEncoding


def hear_about(collected: Collected, n_centroids: int) -> Heard:
    """Read a round over so many centroids, its centroids and mechanism as published.

    Raises
    ------
    UnfitRound
        The round is over no centroids, or over another number of them, or tells nothing.
    """
    heard = _hear_signs(collected) if isinstance(collected.spec.encoding, CentroidSignEncoding) else hear(collected)
    if len(heard.places) != n_centroids:
        raise UnfitRound("this round is over another number of centroids than there are clusters")
    return heard


def _hear_signs(collected: Collected) -> Heard:
    """A lean is the mean, over a feature's reports, of sign times H[h, c] over the contrast.

    Rows h are drawn evenly, so centroids other than c cancel in the mean. Each report adds one over
    the contrast, whatever it says: so the variance is one over its square and the reports, less
    what is known for sure, which is left in. A mass is likewise the mean over the reports of
    the slots in which every point lies above.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    assert isinstance(encoding, CentroidSignEncoding)  # noqa: S101 - for the type checker
    reading = decoder(collected.spec.mechanism)
    k, n_rows = len(encoding.centroids), encoding.n_rows
    told = reading.frequencies(tally)
    by_slot = tally.reports.reshape(-1, n_rows)
    signed = ((told[:, 1] - told[:, 0]) * tally.reports).reshape(-1, n_rows)
    by_feature = by_slot.sum(axis=1)
    estimates = signed @ walsh_signs(n_rows, k) / np.maximum(by_feature, 1)[:, None]
    variance = 1 + 4 * reading.zero_variance  # 1 / tanh^2(eps/2)
    errors = np.where(by_feature > 0, np.sqrt(variance / np.maximum(by_feature, 1)), inf)
    return Heard(
        places=(np.array(encoding.centroids, dtype=np.float64) + 0.5) / LATTICE,
        masses=estimates[-1],
        mass_errors=np.full(k, errors[-1]),
        leans=np.ascontiguousarray(estimates[:-1].T),
        lean_errors=np.tile(errors[:-1], (k, 1)),
        n_reports=tally.n_reports,
    )


def walsh_signs(n_rows: int, n_columns: int) -> NDArray[np.float64]:
    """H[h, c] = (-1)^popcount(h & c): shape (n_rows, n_columns)."""
    both = np.arange(n_rows)[:, None] & np.arange(n_columns)
    return np.asarray(1.0 - 2.0 * (np.bitwise_count(both) % 2))
