"""Axes of `growth` over arrays: reports, cells, features, clusters, rounds, questions."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference_shapes import blobs
from benchmarks.speed.growth_axis import Axis, Work
from benchmarks.speed.kernels_decoding import People
from clustering.central.cells import GridCells
from clustering.central.run import simulate_central
from clustering.curator import Curator, MemoryJournal, Records
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.plan import drive
from clustering.registry import start
from clustering.seeded_entropy import SeededEntropy
from clustering.simulate import simulate
from clustering.synthetic import People as SyntheticPeople
from clustering.weighted_kmeans import seeds
from sfumato.accounting import NANO
from sfumato.specs import LATTICE, Feature, LdpKmeans, ShiftedGrid
from sfumato.specs.central import DpKmeans

Floats = NDArray[np.float64]

LINEAR = 1.1  # what is linear, with the noise of a measurement


def axes(quick: bool) -> tuple[Axis, ...]:
    """All of them; with `quick`, to a tenth of the way."""
    small = 1 if quick else 2
    n = 4_000 if quick else 20_000
    powers = (2, 4, 8, 16, 32, 64) + (() if quick else (128, 256))
    rounds = (4, 8, 16) if quick else (4, 8, 16, 32)
    return (
        Axis(
            "reports counted and decoded (ss, 169 cells)",
            "reports",
            _tens(4, 5 + small),
            _counted,
            LINEAR,
            "each report is read once",
        ),
        Axis(
            "shifted_grid from its tally",
            "reports, whose counts are simulated",
            _tens(4, 6 + small),
            _planned,
            0.35,
            "a tally is as large however many reports it counts; what grows is the fit's steps, as noise hides less",
        ),
        Axis(
            "cells decoded (hr, 100,000 reports)",
            "cells",
            _tens(2, 4 + small),
            _decoded,
            LINEAR,
            "K log K additions, K the power of two above the cells, on top of one addition a report",
        ),
        Axis(
            f"features, a step of weighted Lloyd (k = 16, {n:,} points)",
            "features",
            (2, 4, 8, 16, 32, 64),
            _step_of_features(n),
            LINEAR,
            "points times centres times features",
        ),
        Axis(
            f"features, dp_kmeans (k = 8, {n:,} records)",
            "features",
            (2, 4, 8, 16, 32, 64),
            _private_of_features(n),
            LINEAR,
            "records times centres times features a step",
        ),
        Axis(
            f"clusters, a step of weighted Lloyd (d = 4, {n:,} points)",
            "clusters",
            powers,
            _step_of_clusters(n),
            LINEAR,
            "points times centres times features",
        ),
        Axis(
            f"clusters, seeds by k-means++ (d = 4, {n:,} points)",
            "clusters",
            powers,
            _seeds_of_clusters(n),
            LINEAR,
            "three trials over all points a seed",
        ),
        Axis(
            f"rounds, ldp_kmeans devices and plan (d = 2, k = 4, {n:,} people)",
            "rounds",
            rounds,
            _rounds(n),
            LINEAR,
            "each round has its share of the people, who answer once, and one fit",
        ),
        Axis(
            "questions to a curator",
            "questions",
            _tens(2, 3 + small),
            _questions,
            LINEAR,
            "what was spent is kept as a running sum; added up before every question it was quadratic",
        ),
    )


def _tens(first: int, last: int) -> tuple[int, ...]:
    return tuple(10**power for power in range(first, last + 1))


@lru_cache(maxsize=1)
def _people() -> tuple[People, NDArray[np.uint8]]:
    people = People.drawn("ss", (13, 13), 1.0, 100_000)
    return people, people.reports()


def _counted(n: int) -> Work:
    people, values = _people()
    enough = np.tile(values, (-(-n // len(values)), 1))[:n]
    return lambda: people.shares(enough)


def _planned(n: int) -> Work:
    features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
    at = (np.indices((64, 64)).reshape(2, -1).T + 0.5) / 64
    bumps = sum(np.exp(-((at - place) ** 2).sum(axis=1) / 0.01) for place in ((0.25, 0.3), (0.7, 0.65), (0.3, 0.75)))
    density = (np.asarray(bumps) / np.sum(bumps)).reshape(64, 64)
    people = SyntheticPeople(density, (n,))
    params = ShiftedGrid(epsilon=2.0, clusters=3, cells=16)
    return lambda: drive(start(params, features, n), lambda spec: people.answer(spec, 0, 0))


def _decoded(n_cells: int) -> Work:
    side = round(n_cells**0.5)
    people = People.drawn("hr", (side, n_cells // side), 1.0, 100_000)
    values = people.reports()
    return lambda: people.shares(values)


def _points(n: int, d: int) -> Floats:
    return np.random.default_rng(1).random((n, d))


def _step(points: Floats, k: int) -> Work:
    weights, centres = np.ones(len(points)), points[:k].copy()
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(k)
    return lambda: weighted_lloyd_step(points, weights, centres, labels, sums, masses)


def _step_of_features(n: int) -> Callable[[int], Work]:
    return lambda d: _step(_points(n, d), 16)


def _step_of_clusters(n: int) -> Callable[[int], Work]:
    return lambda k: _step(_points(n, 4), k)


def _seeds_of_clusters(n: int) -> Callable[[int], Work]:
    points, weights = _points(n, 4), np.ones(n)
    return lambda k: lambda: seeds(points, weights, k, PublicWords(1))


def _private_of_features(n: int) -> Callable[[int], Work]:
    def made(d: int) -> Work:
        points, params = _points(n, d), DpKmeans(epsilon=1.0, clusters=8)
        return lambda: simulate_central(params, points, seed=1)

    return made


def _rounds(n: int) -> Callable[[int], Work]:
    draw = blobs(4, 2, width=0.05)
    points, _ = draw(n, np.random.default_rng(1), np.random.default_rng(2))
    inside = points.clip(0, 1)
    return lambda rounds: lambda: simulate(LdpKmeans(epsilon=2.0, clusters=4, rounds=rounds), inside, seed=1)


def _questions(n: int) -> Work:
    records = Records((np.random.default_rng(1).random((100, 2)) * LATTICE).astype(np.int32))
    cells = GridCells((2, 2))

    def work() -> None:
        curator = Curator(records, n * NANO, MemoryJournal(), SeededEntropy(1))
        for _ in range(n):
            curator.counts(cells, NANO)

    return work
