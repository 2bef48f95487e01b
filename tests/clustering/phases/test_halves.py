"""Halves of the waves: each has one of two neighbours, and their fits agree about real clusters only."""

import numpy as np
import pytest

from clustering.centroids.partition_agreement import Population
from clustering.phases.halves import agreement_of_halves, halve
from clustering.phases.mixture_fit import Sketch, sketch_of
from clustering.phases.waves import limits_for, waves_for
from clustering.random import SeededEntropy
from clustering.simulate import collect
from sfumato.specs import Feature, RoundSpec, design_for

UNIT = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))


def sketched(points: np.ndarray, seed: int) -> Sketch:
    """Return the sketch of reports about points at epsilon 2."""
    encoding = waves_for(2, 2, None, 2 * 10**9, 0, None)
    spec = RoundSpec(UNIT, encoding, design_for(encoding, "window", 2 * 10**9))
    entropy = SeededEntropy(seed)
    return sketch_of(encoding, spec.mechanism, collect(spec, points, entropy, entropy.words(len(points))).tally)


def two(n: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.array([(0.3, 0.3), (0.7, 0.7)])[rng.integers(0, 2, n)] + rng.normal(0, 0.05, (n, 2))


def one(n: int) -> np.ndarray:
    return np.random.default_rng(4).normal(0.5, 0.12, (n, 2)).clip(0, 1)


@pytest.mark.parametrize("n_waves", [0, 1, 7, 512])
def test_each_wave_is_in_one_half_and_its_neighbour_in_the_other(n_waves: int) -> None:
    a, b = halve(n_waves)
    assert len(a) == n_waves
    assert (a ^ b).all()
    pairs = a[: n_waves // 2 * 2].reshape(-1, 2)
    assert (pairs.sum(axis=1) == 1).all()


def test_other_divisions_have_other_halves() -> None:
    assert not np.array_equal(halve(512, 0)[0], halve(512, 1)[0])
    assert np.array_equal(halve(512, 1)[0], halve(512, 1)[0])


def test_one_wave_with_reports_has_an_agreement() -> None:
    sketch = sketched(two(5_000), 1)
    alone = sketch.select(np.arange(len(sketch.omegas)) == 3)
    population = Population(two(200), np.ones(200))
    found = agreement_of_halves(alone, population, np.array([(0.3, 0.3), (0.7, 0.7)]), limits_for(2))
    assert -1 <= found.index <= 1


@pytest.mark.parametrize(("draw", "low", "high"), [(two, 0.9, 1.0), (one, -0.1, 0.7)])
def test_agree_about_real_clusters_only(draw, low: float, high: float) -> None:
    """Halves agree about two clusters, and cut one round cluster anywhere, in the mean of four rounds."""
    points = draw(30_000)
    population = Population(points[:2000], np.ones(2000))
    centres = np.array([(0.3, 0.3), (0.7, 0.7)])
    found = [agreement_of_halves(sketched(points, seed), population, centres, limits_for(2)).index for seed in range(4)]
    assert low <= np.mean(found) <= high
