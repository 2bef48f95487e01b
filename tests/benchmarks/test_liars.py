"""The measurement of false reports: what malicious devices send, and what it changes."""

import numpy as np
import pytest

from benchmarks.liars import SHAPES, lie, run
from clustering.random import SeededEntropy
from clustering.registry import start
from sfumato.records.encodings import symbols
from sfumato.specs import Feature, GridKmeans, PhaseSketch, ShiftedGrid


@pytest.mark.parametrize(("params", "d"), [(ShiftedGrid(1.0, 3), 2), (PhaseSketch(1.0, 3), 6)])
def test_each_targeted_report_supports_the_target(params: ShiftedGrid | PhaseSketch, d: int) -> None:
    spec = next(start(params, tuple(Feature(f"x{i}", 0, 1) for i in range(d)), 10_000))
    target = np.full((1, d), 0.9)
    tally = lie(spec, target, 500, SeededEntropy(1)).tally
    slots = np.arange(spec.encoding.n_slots)
    own = symbols(spec.encoding, np.repeat(target, len(slots), axis=0), slots)
    assert tally.n_reports == 500
    assert (tally.counts[slots, own] == tally.reports).all()


def test_a_targeted_attack_creates_mass_that_random_reports_do_not() -> None:
    points, labels = SHAPES[2].sample(8_000, 1)
    random, targeted = (run(GridKmeans(4.0, 5), points, labels, each, 0.2, 1) for each in ("random", "targeted"))
    assert targeted.false_mass > 0.15 > abs(random.false_mass) + 0.05
    assert targeted.ari < random.ari
