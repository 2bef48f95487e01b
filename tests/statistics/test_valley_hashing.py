"""`valley_hashing` tells seven Gaussian groups apart as well as its prototype did, within the spread of a few draws."""

import numpy as np
import pytest

from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from sfumato.specs import ValleyHashing

# Mean ARI of the prototype at epsilon .5, 1, 2, by reports and features (STATISTICS 3.3).
SEEN = {
    (100_000, 4): (0.75, 0.89, 0.90),
    (100_000, 24): (0.78, 0.95, 0.98),
    (300_000, 8): (0.87, 0.95, 0.96),
}


def groups(n, d, seed, k=7, width=0.05):
    """Round groups with centres in the middle 70 % of the box, six widths apart, of unlike shares."""
    rng = np.random.default_rng([seed, d])  # not the devices' own generator
    while True:
        centres = rng.uniform(0.15, 0.85, (k, d))
        apart = np.linalg.norm(centres[:, None] - centres[None, :], axis=2) + 9 * np.eye(k)
        if apart.min() > 6 * width:
            break
    labels = rng.choice(k, n, p=rng.dirichlet(np.full(k, 8)))
    return (centres[labels] + width * rng.standard_normal((n, d))).clip(0, 1), labels


def score(n, d, epsilon, seed):
    points, labels = groups(n, d, seed)
    model = simulate(ValleyHashing(epsilon=epsilon, clusters=7), points, seed=seed)
    return adjusted_rand_index(model.assign(points), labels)


@pytest.mark.parametrize(("d", "least"), [(8, 0.75), (24, 0.8)])
def test_groups_are_told_apart_by_a_third_of_the_reports_seen(d, least):
    assert score(40_000, d, 2, 0) > least


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("n", "d"), SEEN)
def test_groups_are_told_apart_as_well_as_seen(n, d):
    for epsilon, seen in zip((0.5, 1, 2), SEEN[n, d], strict=True):
        scores = [score(n, d, epsilon, seed) for seed in range(4)]
        assert np.mean(scores) + np.std(scores) + 0.05 >= seen, f"epsilon {epsilon:g}: {np.mean(scores):.2f}"
