"""Growth of computations: reports, cells, features, clusters, rounds, queries."""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference_shapes import blobs
from benchmarks.speed.growth.axis import Axis, Work
from benchmarks.speed.kernels.decoding import People
from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from clustering.central.queries import MemoryJournal, Records
from clustering.centroids.weighted_kmeans import choose_seeds
from clustering.density.synthetic_rounds import SyntheticPopulation
from clustering.kernels.kmeans import weighted_lloyd_step
from clustering.random import PublicWords, SeededEntropy
from clustering.registry import start
from clustering.rounds.plan import drive
from clustering.simulate import simulate, simulate_central
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE, Feature, LdpKmeans, ShiftedGrid
from sfumato.specs.central import DpKmeans

Floats = NDArray[np.float64]

LINEAR = 1.1  # linear growth, with a margin for noise
FEATURES = (2, 4, 8, 16, 32, 64)


def axes(quick: bool) -> tuple[Axis, ...]:
    """Return all axes; with `quick`, their last sizes are a tenth."""
    small = 1 if quick else 2
    n = 4_000 if quick else 20_000
    powers = (2, 4, 8, 16, 32, 64) + (() if quick else (128, 256))
    rounds = (4, 8, 16) if quick else (4, 8, 16, 32)
    lloyd = "points times centres times features"
    return (
        Axis(
            "reports counted and decoded (ss, 169 cells)",
            "reports",
            _tens(4, 5 + small),
            LINEAR,
            "each report is read once",
            _count_work,
        ),
        Axis(
            "shifted_grid from its tally",
            "reports, with simulated counts",
            _tens(4, 6 + small),
            0.35,
            "the size of a tally does not depend on its reports; the fit takes more steps if there is less noise",
            _plan_work,
        ),
        Axis(
            "cells decoded (hr, 100,000 reports)",
            "cells",
            _tens(2, 4 + small),
            LINEAR,
            "K log K additions, K the power of two above the cells, and one addition a report",
            _decode_work,
        ),
        Axis(
            f"features, a step of weighted Lloyd (k = 16, {n:,} points)",
            "features",
            FEATURES,
            LINEAR,
            lloyd,
            lambda d: _step(_points(n, d), 16),
        ),
        Axis(
            f"features, dp_kmeans (k = 8, {n:,} records)",
            "features",
            FEATURES,
            LINEAR,
            "records times centres times features a step",
            lambda d: partial(simulate_central, DpKmeans(epsilon=1.0, clusters=8), _points(n, d), seed=1),
        ),
        Axis(
            f"clusters, a step of weighted Lloyd (d = 4, {n:,} points)",
            "clusters",
            powers,
            LINEAR,
            lloyd,
            lambda k: _step(_points(n, 4), k),
        ),
        Axis(
            f"clusters, seeds by k-means++ (d = 4, {n:,} points)",
            "clusters",
            powers,
            LINEAR,
            "three trials over all points a seed",
            _seeds_work(n),
        ),
        Axis(
            f"rounds, ldp_kmeans devices and plan (d = 2, k = 4, {n:,} people)",
            "rounds",
            rounds,
            LINEAR,
            "each round has its share of the people, who report once, and one fit",
            _rounds_work(n),
        ),
        Axis(
            "queries to a curator",
            "queries",
            _tens(2, 3 + small),
            LINEAR,
            "the cost is a running sum; adding it up before every query would be quadratic",
            _query_work,
        ),
    )


def _tens(first: int, last: int) -> tuple[int, ...]:
    return tuple(10**power for power in range(first, last + 1))


@lru_cache(maxsize=1)
def _people() -> tuple[People, NDArray[np.uint8]]:
    people = People.sample("ss", (13, 13), 1.0, 100_000)
    return people, people.reports()


def _count_work(n: int) -> Work:
    people, values = _people()
    enough = np.tile(values, (-(-n // len(values)), 1))[:n]
    return lambda: people.shares(enough)


def _plan_work(n: int) -> Work:
    features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
    at = (np.indices((64, 64)).reshape(2, -1).T + 0.5) / 64
    bumps = sum(np.exp(-((at - place) ** 2).sum(axis=1) / 0.01) for place in ((0.25, 0.3), (0.7, 0.65), (0.3, 0.75)))
    density = (np.asarray(bumps) / np.sum(bumps)).reshape(64, 64)
    people = SyntheticPopulation(density, (n,))
    params = ShiftedGrid(epsilon=2.0, clusters=3, cells=16)
    return lambda: drive(start(params, features, n), lambda spec: people.collect(spec, 0, 0))


def _decode_work(n_cells: int) -> Work:
    side = round(n_cells**0.5)
    people = People.sample("hr", (side, n_cells // side), 1.0, 100_000)
    values = people.reports()
    return lambda: people.shares(values)


def _points(n: int, d: int) -> Floats:
    return np.random.default_rng(1).random((n, d))


def _step(points: Floats, k: int) -> Work:
    weights, centres = np.ones(len(points)), points[:k].copy()
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(k)
    return lambda: weighted_lloyd_step(points, weights, centres, labels, sums, masses)


def _seeds_work(n: int) -> Callable[[int], Work]:
    points, weights = _points(n, 4), np.ones(n)
    return lambda k: lambda: choose_seeds(points, weights, k, PublicWords(1))


def _rounds_work(n: int) -> Callable[[int], Work]:
    points, _ = blobs(4, 2, width=0.05)(n, np.random.default_rng(1), np.random.default_rng(2))
    return lambda rounds: partial(
        simulate, LdpKmeans(epsilon=2.0, clusters=4, rounds=rounds), points.clip(0, 1), seed=1
    )


def _query_work(n: int) -> Work:
    records = Records((np.random.default_rng(1).random((100, 2)) * LATTICE).astype(np.int32))
    cells = GridCells((2, 2))

    def work() -> None:
        curator = Curator(records, n * NANO, MemoryJournal(), SeededEntropy(1))
        for _ in range(n):
            curator.counts(cells, NANO)

    return work
