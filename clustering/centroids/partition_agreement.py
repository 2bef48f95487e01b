"""Expected agreement of the partition by centroids with that of another run.

Refits to data that are drawn again from released values give further partitions. They are compared with each other on a
population that the released values describe. All of it is post-processing and costs no privacy budget.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from clustering.centroids.weighted_kmeans import choose_seeds, lloyd
from clustering.density.expected_error import disagreement
from clustering.density.map_agreement import adjusted_rand
from clustering.kernels.kmeans import weighted_lloyd_step
from clustering.random import PublicWords
from sfumato.model.precision import ExpectedAgreement

TABLE_FILE = Path(__file__).with_name("partition_table.json")  # written by `benchmarks.partition_table`
REFITS = 8
NOISE = 2**0.5  # noise of a refit in that of a run, because the released values have noise already
BELOW_ALL = 1.1  # above each index
POOR = 0.4  # agreement below which two partitions have little in common
FRESH_STARTS = 2  # starts of a refit besides the released centroids

# values that describe the population
Source = Literal["cells", "moments", "counts", "spreads", "grid", "synopsis", "rounds", "sketch", "centres"]


class Population(NamedTuple):
    """Weighted places that stand for the people or records."""

    points: NDArray[np.float64]  # (n, d)
    weights: NDArray[np.float64]  # (n,), non-negative, at least one positive


@dataclass(frozen=True)
class PartitionAgreement:
    """Agreement of the partitions of refits."""

    source: Source
    index: float  # mean adjusted Rand index of two refits
    moved: float  # mean share of people with another label than by the released centroids

    def expected(self) -> ExpectedAgreement:
        """Return the expected agreement by the calibration of this version."""
        return calibrations()[self.source].estimate(self.index)

    def poor_share(self) -> float:
        """Return the share of such results that agreed to less than `POOR` in the calibration of this version."""
        ranges = calibrations()[self.source]
        return ranges.poor[ranges.place(self.index)]

    def to_wire(self) -> dict[str, str | float]:
        """Return plain JSON values."""
        return {"source": self.source, "index": self.index, "moved": self.moved}


class AgreementRanges(NamedTuple):
    """The agreement of repeated runs in ranges of the index of refits: median, 10 % and 90 % quantile.

    `poor` has the share of runs that agreed to less than `POOR`.
    """

    below: list[float]  # upper limits of the ranges, ascending; the last is `BELOW_ALL`
    value: list[float]
    lower: list[float]
    upper: list[float]
    poor: list[float]

    def place(self, index: float) -> int:
        """Return the place of the range of an index."""
        return next(place for place, below in enumerate(self.below) if index < below)

    def estimate(self, index: float) -> ExpectedAgreement:
        """Return the expected agreement of a result with this index of refits."""
        place = self.place(index)
        return ExpectedAgreement(self.value[place], self.lower[place], self.upper[place])


@cache
def calibrations() -> dict[Source, AgreementRanges]:
    """Return the calibrations of this version."""
    return {source: AgreementRanges(**table) for source, table in json.loads(TABLE_FILE.read_text("utf-8")).items()}


def compare_partitions(
    source: Source,
    population: Population,
    own: NDArray[np.float64],
    refits: Sequence[NDArray[np.float64]],
    *,
    with_own: bool = False,
) -> PartitionAgreement:
    """Compare the partitions of refits with each other, and with that of the released centroids.

    Parameters
    ----------
    source : Source
    population : Population
    own : ndarray of shape (k, d)
    refits : sequence of ndarray of shape (k', d)
        At least two.
    with_own : bool
        Whether the index also compares refits with the released centroids.
    """
    points, weights = population.points, population.weights / population.weights.sum()
    labels = [_label(points, centres) for centres in (own, *refits)]
    pairs = [(i, j) for i in range(1 - with_own, len(labels)) for j in range(i + 1, len(labels))]
    index = float(np.mean([adjusted_rand(labels[i], labels[j], weights) for i, j in pairs]))
    moved = float(np.mean([disagreement(labels[0], other, weights) for other in labels[1:]]))
    return PartitionAgreement(source, index, moved)


def refit(population: Population, own: NDArray[np.float64], words: PublicWords) -> NDArray[np.float64]:
    """Return the best centres of k-means from the released centroids and from new starts."""
    points, weights = (np.ascontiguousarray(part) for part in population)
    starts = [own, *(choose_seeds(points, weights, len(own), words) for _ in range(FRESH_STARTS))]
    return min((lloyd(points, weights, start) for start in starts), key=lambda fit: fit.inertia).centres


def draw_normal(words: PublicWords, *shape: int) -> NDArray[np.float64]:
    """Return normal deviates from public words."""
    return np.asarray(ndtri(words.uniform(*shape).clip(2.0**-50, 1 - 2.0**-50)), dtype=np.float64)


def draw_laplace(words: PublicWords, n: int) -> NDArray[np.float64]:
    """Return Laplace deviates of scale 1 from public words."""
    offsets = words.uniform(n) - 0.5
    return np.asarray(-np.sign(offsets) * np.log(np.maximum(1 - 2 * np.abs(offsets), 2.0**-50)), dtype=np.float64)


def _label(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.int64]:
    labels = np.empty(len(points), dtype=np.int64)
    weights = np.ones(len(points))
    sums, masses = np.empty_like(centres), np.empty(len(centres))
    weighted_lloyd_step(np.ascontiguousarray(points), weights, np.ascontiguousarray(centres), labels, sums, masses)
    return labels
