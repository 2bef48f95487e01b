"""Crowds about three places, the devices they carry, and `phase_sketch` run over them."""

import numpy as np

from clustering.plan import drive
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect
from sfumato.specs import (
    Feature,
)

D4 = tuple(Feature(f"x{i}", 0, 1) for i in range(4))
CENTRES = np.array([[0.25, 0.3, 0.7, 0.4], [0.75, 0.3, 0.3, 0.6], [0.5, 0.8, 0.55, 0.5]])
WAYS = ("auto", "lloyd", "sign", "none")


def crowds(n, seed=1, width=0.06, centres=CENTRES):
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(centres), n, p=[0.5, 0.3, 0.2])
    return (centres[labels] + rng.normal(0, width, (n, centres.shape[1]))).clip(0, 1), labels


class Devices:
    """Answers rounds over points, and keeps what was asked and stored."""

    def __init__(self, points, seed=1):
        self.points, self.entropy = points, SeededEntropy(seed)
        self.draws = self.entropy.words(len(points))
        self.asked, self.stored = [], []

    def __call__(self, spec):
        collected = collect(spec, self.points, self.entropy, self.draws)
        self.asked.append(spec)
        self.stored.append(collected.tally.to_bytes())
        return collected


def run(params, points, seed=1, features=D4):
    devices = Devices(points, seed)
    model = drive(start(params, features, len(points)), devices)
    return model, devices
