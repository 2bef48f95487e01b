"""Populations of known density, and the tallies and counts that they give in the windows of a series.

Tallies are drawn in the normal approximation of the mechanism, so that no report is made. Changes begin in window 6.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from clustering.density.synthetic_rounds import perturb_counts, symbol_shares
from clustering.metrics import adjusted_rand_index
from clustering.rounds.plan import Collected
from clustering.series.observed import Counted
from sfumato.sizing import planned_rounds
from sfumato.specs import Feature, RoundSpec, ShiftedGrid

Density = NDArray[np.float64]
Blob = tuple[float, float, float, float]  # share, x, y, standard deviation

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
RESOLUTION = 192  # cells of a known density along each feature
CHANGED = 6  # first window after a change
PEOPLE = 6_000  # places at which maps are compared with the truth
RECORDS = 20_000  # records of a window


@dataclass(frozen=True)
class Population:
    """Round clusters, and arcs given as many small ones with one label."""

    name: str
    blobs: tuple[Blob, ...]
    arcs: tuple[tuple[float, float, float, float, int], ...] = ()  # share, x, y, radius, side
    born: tuple[float, float] = (0.5, 0.88)  # place of a new cluster
    born_width: float = 0.045  # standard deviation of a new cluster

    def parts(self, change: str, window: int) -> list[tuple[float, list[Blob]]]:
        """Return the clusters of a window: their shares and their blobs."""
        after, arcs = window >= CHANGED, [list(_arc(*each)) for each in self.arcs]
        blobs, shares = [[each] for each in self.blobs], [each[0] for each in self.arcs]
        found = [(share, blob) for share, blob in zip(shares, arcs, strict=True)]
        found += [(blob[0][0], blob) for blob in blobs]
        if change in {"grows", "vanishes"}:
            last = {"grows": 0.15 if after else 0.05, "vanishes": 0.0 if after else found[-1][0]}[change]
            rest = sum(share for share, _ in found[:-1])
            found = [(share * (1 - last) / rest, each) for share, each in found[:-1]] + [(last, found[-1][1])]
        elif change == "born" and after:
            found = [(0.9 * share, each) for share, each in found] + [(0.1, [(0.1, *self.born, self.born_width)])]
        elif change == "moves":
            (share, ((_, x, y, width),)), step = found[-2], 0.012 * window
            side = -1 if y > 0.5 else 1
            found[-2] = (share, [(share, x - 0.6 * step, y + 0.8 * side * step, width)])
        elif change == "splits" and after:
            place = len(self.arcs)
            share, ((_, x, y, width),) = found[place]
            far, narrow = 1.12 * width, 0.7 * width
            found[place] = (share / 2, [(share, x - far, y + far, narrow)])
            found.append((share / 2, [(share, x + far, y - far, narrow)]))
        elif change == "season":
            factors = 1 + 0.4 * np.sin(2 * np.pi * window / 4 + 2.4 * np.arange(len(found)))
            found = [(share * float(factor), each) for (share, each), factor in zip(found, factors, strict=True)]
        total = sum(share for share, _ in found)
        return [(share / total, each) for share, each in found if share > 0]


def _arc(share: float, x: float, y: float, radius: float, side: int) -> Iterator[Blob]:
    for angle in (np.arange(60) + 0.5) / 60 * np.pi:
        yield share / 60, x + radius * float(np.cos(angle)), y + side * radius * float(np.sin(angle)), 0.03


POPULATIONS = (
    Population(
        "five blobs",
        ((0.30, 0.25, 0.25, 0.07), (0.25, 0.72, 0.25, 0.06), (0.20, 0.30, 0.72, 0.06), (0.15, 0.75, 0.75, 0.05),
         (0.10, 0.52, 0.50, 0.04)),
    ),
    Population(
        "two moons and two blobs",
        ((0.25, 0.80, 0.80, 0.055), (0.15, 0.82, 0.18, 0.05)),
        ((0.30, 0.33, 0.42, 0.19, 1), (0.30, 0.52, 0.50, 0.19, -1)),
        (0.15, 0.85),
    ),
    Population(
        "eight blobs",
        ((0.20, 0.15, 0.20, 0.05), (0.18, 0.45, 0.15, 0.05), (0.15, 0.80, 0.18, 0.055), (0.12, 0.20, 0.55, 0.045),
         (0.10, 0.55, 0.48, 0.045), (0.10, 0.85, 0.55, 0.045), (0.08, 0.30, 0.85, 0.04), (0.07, 0.70, 0.85, 0.04)),
        (),
        (0.50, 0.70),
    ),
    Population(
        "four wide blobs",  # wide blobs near each other, of unequal density
        ((0.40, 0.28, 0.30, 0.08), (0.25, 0.68, 0.34, 0.06), (0.20, 0.62, 0.72, 0.07), (0.15, 0.25, 0.74, 0.05)),
        (),
        (0.90, 0.90),
    ),
)  # fmt: skip


@cache
def density(population: Population, change: str, window: int) -> Density:
    """Return the known density of a window."""
    middles = (np.arange(RESOLUTION) + 0.5) / RESOLUTION
    total = np.zeros((RESOLUTION, RESOLUTION))
    for share, blobs in population.parts(change, window):
        own = np.zeros_like(total)
        for weight, x, y, width in blobs:
            along = [np.exp(-0.5 * ((middles - place) / width) ** 2) for place in (x, y)]
            own += weight * np.multiply.outer(*along) / width**2
        total += share * own / own.sum()
    return np.asarray(total / total.sum())


@cache
def people(population: Population, change: str, window: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a sample of places with their clusters."""
    rng, places, labels = np.random.default_rng(9), [], []
    for label, (share, blobs) in enumerate(population.parts(change, window)):
        n = round(share * PEOPLE)
        chosen = np.array(blobs)[rng.integers(len(blobs), size=n)]
        places.append(rng.normal(chosen[:, 1:3], chosen[:, 3:]))
        labels.append(np.full(n, label))
    return np.concatenate(places).clip(0, 1 - 1e-9), np.concatenate(labels)


@cache
def round_spec(epsilon: float, cells: int) -> RoundSpec:
    """Return the round of a window."""
    (only,) = planned_rounds(ShiftedGrid(epsilon=epsilon, cells=cells), 2, 1000)
    return only.spec(FEATURES)


@cache
def _shares(population: Population, change: str, window: int, spec: RoundSpec) -> NDArray[np.float64]:
    return symbol_shares(spec.encoding, density(population, change, window))


def draw(
    population: Population, change: str, window: int, spec: RoundSpec, n: int, rng: np.random.Generator
) -> Collected:
    """Return the tally of a window with n reports."""
    shares = _shares(population, change, window % 4 if change == "season" else window, spec)
    reports = rng.multinomial(n, np.full(len(shares), 1 / len(shares))).astype(np.int64)
    counts = np.stack([rng.multinomial(each, share) for each, share in zip(reports, shares, strict=True)])
    noise = rng.standard_normal(counts.shape)
    return Collected(spec, perturb_counts(spec, counts.astype(np.int64), reports, noise))


def agreement(labels: NDArray[np.int64], population: Population, change: str, window: int) -> float:
    """Return the adjusted Rand index of a label map with the clusters of the people."""
    places, truth = people(population, change, window)
    cells = (places * len(labels)).astype(int)
    return adjusted_rand_index(labels[cells[:, 0], cells[:, 1]], truth)


def count_records(found: Density, cells: int, scale: float, rng: np.random.Generator) -> Counted:
    """Return the noisy counts of the records of a window."""
    factor = RESOLUTION // cells
    shares = found[: factor * cells, : factor * cells].reshape(cells, factor, cells, factor).sum(axis=(1, 3))
    counts = rng.multinomial(RECORDS, (shares / shares.sum()).ravel())
    noise = rng.geometric(-np.expm1(-1 / scale), (2, counts.size))
    return Counted(FEATURES, (counts + noise[0] - noise[1]).reshape(cells, cells), scale)
