"""Compare label maps with the best that their reports allow: `python -m benchmarks.map_bound`.

**Setting.** N people; x ~ sum_c pi_c N(mu_c, s^2 I) in two features. Each person sends one report: a subset selection
over the cells of a shifted grid, as the product designs it. The number of clusters is given.

**Bound.** The estimator knows the law and s, and estimates the centres and the shares. A report names a subset of the
cells. Its probability is proportional to 1 + (r - 1) P, with the share P of people in the named cells and the ratio r
of the mechanism. The information of one report is I = E[S S'], with the score S, the gradient of the logarithm of this
probability. The expectation is a mean over drawn reports. The covariance of an unbiased estimate is at least
(N I)^-1 (Cramer and Rao). Estimates are drawn from the normal law with this covariance, and each person gets the most
likely cluster of the estimate. The mean adjusted Rand index of these partitions is that *at the bound*. A label map
does not know the law or s.
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.coarse_maps import draw_centres
from benchmarks.output import table
from clustering.grids.shifted_grid import fit, shifted_grid
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy, collect
from sfumato.specs import Feature, RoundSpec, ShiftedGrid
from sfumato.specs.encodings import ShiftedGridEncoding

FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1))
N = 150_000
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SEEDS = (1, 2)
REPORTS = 60_000  # drawn for the information
SLOTS = ((0, 0), (1, 2), (2, 3), (3, 1))  # shifts for which it is computed
ESTIMATES, SCORED = 20, 20_000
STEP = 1e-5  # differences replace derivatives
# clusters, s, least distance of two centres in units of s
CASES = (
    (2, 0.12, 2.0), (2, 0.12, 3.0), (2, 0.12, 4.0), (5, 0.05, 5.0), (8, 0.04, 5.0), (15, 0.03, 5.0), (15, 0.045, 3.3),
)  # fmt: skip

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class Mixture(NamedTuple):
    """Round normal clusters.

    Parameters
    ----------
    centres : ndarray of shape (clusters, 2)
    shares : ndarray of shape (clusters,)
    spread : float
        Standard deviation of each feature of each cluster.
    """

    centres: Array
    shares: Array
    spread: float

    @property
    def unknowns(self) -> Array:
        """Return the coordinates of the centres, and all shares but the last."""
        return np.concatenate([self.centres.ravel(), self.shares[:-1]])

    def having(self, unknowns: Array) -> "Mixture":
        """Return a mixture of as many clusters with these unknowns."""
        cut = self.centres.size
        shares = np.append(unknowns[cut:], 1 - unknowns[cut:].sum())
        return Mixture(unknowns[:cut].reshape(-1, 2), shares, self.spread)

    def cell_shares(self, encoding: ShiftedGridEncoding, slot: tuple[int, int]) -> Array:
        """Return the share of people in each coarse cell under a shift; those outside of the bounds are at the edge."""
        along = []
        for feature, shift in enumerate(slot):
            edges = (np.arange(encoding.cells + 2) - shift / encoding.shifts) / encoding.cells
            edges[[0, -1]] = -np.inf, np.inf
            along.append(np.diff(ndtr((edges - self.centres[:, feature, None]) / self.spread), axis=1))
        return np.asarray(np.einsum("c,ci,cj->ij", self.shares, *along).ravel())

    def assign(self, points: Array) -> Labels:
        """Return the most likely cluster of each point."""
        squares = ((points[:, None] - self.centres) ** 2).sum(axis=2)
        return np.asarray((squares / (2 * self.spread**2) - np.log(self.shares.clip(1e-3))).argmin(axis=1))


def information(mixture: Mixture, spec: RoundSpec, rng: np.random.Generator) -> Array:
    """Return the Fisher information of one report on the unknowns of a mixture."""
    found = np.zeros((len(mixture.unknowns),) * 2)
    more = float(spec.mechanism.ratio()) - 1
    encoding = spec.encoding
    assert isinstance(encoding, ShiftedGridEncoding)
    for slot in SLOTS:
        shares = mixture.cell_shares(encoding, slot)
        gradient = np.column_stack([
            mixture.having(mixture.unknowns + step).cell_shares(encoding, slot)
            - mixture.having(mixture.unknowns - step).cell_shares(encoding, slot)
            for step in STEP * np.eye(len(mixture.unknowns))
        ]) / (2 * STEP)  # fmt: skip
        symbols = rng.choice(len(shares), REPORTS // len(SLOTS), p=shares / shares.sum())
        values = spec.mechanism.perturb_many(symbols, SeededEntropy(int(rng.integers(1 << 30))))
        named = np.unpackbits(values, axis=1, bitorder="little")[:, : len(shares)].astype(np.float64)
        score = more * (named @ gradient) / (1 + more * named @ shares)[:, None]
        found += score.T @ score / len(score) / len(SLOTS)
    return found


class Row(NamedTuple):
    """Adjusted Rand indices of a case: without noise, at the bound, and of the label map."""

    without_noise: float
    at_the_bound: float
    label_map: float


def measure(clusters: int, spread: float, apart: float, epsilon: float, seed: int) -> Row:
    """Return the indices of one run."""
    rng = np.random.default_rng([clusters, round(1000 * spread), round(10 * apart), seed])
    if clusters == 2:
        centres = 0.5 + np.array([[-0.5, 0], [0.5, 0]]) * apart * spread
    else:
        centres = np.array(draw_centres(rng, clusters, apart * spread, 0.12))
    mixture = Mixture(centres, rng.dirichlet(np.full(clusters, 8.0)), spread)
    labels = rng.choice(clusters, N, p=mixture.shares)
    points = (centres[labels] + rng.normal(0, spread, (N, 2))).clip(0, 1)
    scored = rng.integers(0, N, SCORED)

    def index(found: Labels) -> float:
        return adjusted_rand_index(found, labels[scored])

    spec = next(shifted_grid(ShiftedGrid(epsilon, clusters), FEATURES, N))
    covariance = np.linalg.inv(N * information(mixture, spec, rng))
    estimates = rng.multivariate_normal(mixture.unknowns, covariance, ESTIMATES)
    entropy = SeededEntropy(100 * seed + round(10 * epsilon))
    model = fit(ShiftedGrid(epsilon, clusters), collect(spec, points, entropy, entropy.words(N)))
    return Row(
        index(mixture.assign(points[scored])),
        float(np.mean([index(mixture.having(each).assign(points[scored])) for each in estimates])),
        index(model.assign(points[scored])),
    )


def report() -> Iterator[list[str]]:
    """Yield a line of the table for each case and epsilon."""
    for clusters, spread, apart in CASES:
        for epsilon in EPSILONS:
            row = Row(*np.mean([measure(clusters, spread, apart, epsilon, seed) for seed in SEEDS], axis=0))
            yield [
                str(clusters), f"{spread:g}", f"{apart:g}", f"{epsilon:g}", *(f"{value:.3f}" for value in row),
                f"{row.label_map / row.at_the_bound:.2f}",
            ]  # fmt: skip


HEADS = ("K", "spread", "least distance / spread", "ε", "without noise", "at the bound", "label map", "ratio")

if __name__ == "__main__":
    sys.stdout.write(table(HEADS, list(report())))
