"""The public domain of records: the nearest points of box and ball, and the noise that a ball saves."""

import numpy as np
import pytest

from clustering.central.cells import CategoryBlock, Domain, from_places
from clustering.simulate import simulate_central
from sfumato.specs import PrivateKmeans
from sfumato.specs.attributes import Categorical


class TestDomain:
    @pytest.mark.parametrize("is_ball", [False, True])
    def test_confines_centres_to_the_nearest_points(self, is_ball: bool) -> None:
        domain = Domain(6, is_ball)
        chance = np.random.default_rng(0)
        inside = domain.confine(0.5 + chance.uniform(-1, 1, size=(50, 6)) * domain.radius)
        assert (np.linalg.norm(inside - 0.5, axis=1) <= domain.radius + 1e-12).all()
        assert np.allclose(domain.confine(inside), inside)
        for centre in 0.5 + chance.normal(0, 3, size=(20, 6)):
            (found,) = domain.confine(centre[None])
            assert ((inside - found) @ (centre - found)).max() < 1e-9  # the projection on a convex set

    def test_keeps_the_middle_of_a_ball(self) -> None:
        assert Domain(3, is_ball=True).confine(np.full((1, 3), 0.5)).tolist() == [[0.5] * 3]

    def test_confines_categories_to_shares(self) -> None:
        blocks = tuple(
            CategoryBlock(Categorical(name, [*"abcdef"[:n]], use="cluster", weight=weight))
            for name, n, weight in (("p", 2, 6.0), ("q", 6, 0.5))
        )
        domain, chance = Domain(10, blocks=blocks), np.random.default_rng(1)
        records = np.concatenate([chance.uniform(size=(200, 2)), *_places(blocks, chance)], axis=1)
        assert np.linalg.norm(records - 0.5, axis=1).max() <= domain.radius + 1e-6
        assert np.allclose(domain.confine(records), records, atol=1e-6)
        for centre in 0.5 + chance.normal(0, 0.4, size=(20, 10)):
            (found,) = domain.confine(centre[None])
            assert ((records - found) @ (centre - found)).max() < 1e-6  # the projection on the hull of the records
        assert (domain.n_numeric, domain.n_planned) == (2, 10)
        assert Domain(3, blocks=blocks[:1]).n_planned == 5


def _places(blocks: tuple[CategoryBlock, ...], chance: np.random.Generator) -> list[np.ndarray]:
    return [from_places(each.places[chance.integers(each.n_categories, size=200)]) for each in blocks]


class TestBall:
    @pytest.mark.parametrize(
        ("d", "k", "n", "delta", "gain"),
        [
            pytest.param(80, 2, 2000, 1e-6, 2.0, marks=pytest.mark.slow),
            (48, 3, 3000, 0.0, 1.5),
        ],
    )
    def test_reduces_the_loss_and_contains_the_centres(self, d: int, k: int, n: int, delta: float, gain: float) -> None:
        loss = {False: 0.0, True: 0.0}
        for seed in range(5):
            chance = np.random.default_rng(seed)
            means = chance.normal(size=(k, d))
            points = means / np.linalg.norm(means, axis=1, keepdims=True)
            labels = chance.integers(k, size=n)
            points = points[labels] + 0.6 * chance.normal(size=(n, d)) / d**0.5
            points /= np.linalg.norm(points, axis=1, keepdims=True)
            best = np.array([points[labels == cluster].mean(axis=0) for cluster in range(k)])
            for in_ball in loss:
                params = PrivateKmeans(1.0, k, delta=delta)
                model = simulate_central(params, (points + 1) / 2, seed=seed, in_ball=in_ball)
                centres = np.asarray(model.centroids) * 2 - 1
                loss[in_ball] += self._loss(points, centres) / self._loss(points, best) - 1
                assert not in_ball or np.linalg.norm(centres, axis=1).max() <= 1 + 1e-9
        assert loss[True] * gain < loss[False], loss

    def _loss(self, points: np.ndarray, centres: np.ndarray) -> float:
        return float(((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum())
