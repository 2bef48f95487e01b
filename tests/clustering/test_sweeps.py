"""Sweeps of simulated runs on a sample."""

from typing import Any

import numpy as np
import pytest

from clustering.sweeps import sweep_sample
from sfumato.errors import InvalidSpec
from sfumato.specs import Feature, PrivateKmeans, UniformGrid

FEATURES = (Feature("east", 0, 10, "km"),)
PLACES = np.repeat([0, 1, 2], 300)
PEOPLE = np.array([[0.7], [3.2], [8.2]])[PLACES]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [None, PLACES])
def test_is_more_accurate_with_a_larger_epsilon(labels: Any) -> None:
    options: dict[str, Any] = {"features": FEATURES, "epsilons": [0.01, 8], "repetitions": 3}
    low, high = sweep_sample(UniformGrid(1.0, clusters=3, cells=8), PEOPLE, labels=labels, **options).points
    assert (high.size, high.accuracy) == (900, 1.0)
    assert high.lower == 1.0 > low.lower


def test_states_what_is_missing() -> None:
    with pytest.raises(InvalidSpec, match="needs the labels"):
        sweep_sample(PrivateKmeans(1.0, 2), PEOPLE, features=FEATURES)
    with pytest.raises(InvalidSpec, match="one entry for each"):
        sweep_sample(UniformGrid(1.0), PEOPLE, features=FEATURES, labels=[1])
