"""Windows of a small population of two round clusters, with tallies in the normal approximation."""

from dataclasses import replace

import numpy as np

from clustering.density.synthetic_rounds import perturb_counts, symbol_shares
from clustering.rounds.plan import Collected
from sfumato.sizing import planned_rounds
from sfumato.specs import Feature, RoundSpec, ShiftedGrid

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
CELLS = 8


def spec_of(epsilon: float, n_features: int = 2, circles: tuple[int, ...] = ()) -> RoundSpec:
    """Return the round of a window; `circles` are the indices of periodic features."""
    (only,) = planned_rounds(ShiftedGrid(epsilon=epsilon, cells=CELLS), n_features, 1000, circles)
    features = (*FEATURES, Feature("z", 0.0, 1.0))[:n_features]
    return only.spec(tuple(replace(each, periodic=place in circles) for place, each in enumerate(features)))


def blobs(*parts: tuple[float, float, float]) -> np.ndarray:
    """Return the density of round clusters (share, x, y) over 32 cells along each feature."""
    middles = (np.arange(32) + 0.5) / 32
    total = np.zeros((32, 32))
    for share, x, y in parts:
        along = [np.exp(-0.5 * ((middles - place) / 0.06) ** 2) for place in (x, y)]
        own = np.multiply.outer(*along)
        total += share * own / own.sum()
    return total / total.sum()


def draw(
    density: np.ndarray, epsilon: float, n: int, rng: np.random.Generator, circles: tuple[int, ...] = ()
) -> Collected:
    """Return the tally of a window with n reports."""
    spec = spec_of(epsilon, density.ndim, circles)
    shares = symbol_shares(spec.encoding, density)
    reports = rng.multinomial(n, np.full(len(shares), 1 / len(shares))).astype(np.int64)
    people = np.stack([rng.multinomial(each, share) for each, share in zip(reports, shares, strict=True)])
    return Collected(spec, perturb_counts(spec, people.astype(np.int64), reports, rng.standard_normal(people.shape)))
