"""The test of a tally against the law of its mechanism, and the bound on dishonest devices."""

import numpy as np
import pytest

from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.law import checking_law, find_faults
from clustering.rounds.plan import Collected, drive
from clustering.simulate import collect
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, RoundSpec, UniformGrid

UNIT = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
N_DEVICES = 20_000


def tally_of(kind, n_false):
    """A round of honest devices in one place, and of others that name the first symbols."""
    mechanism = mechanisms.design(kind, 64, NANO)
    spec = RoundSpec(UNIT, GridEncoding((8, 8)), mechanism)
    points, entropy = np.full((N_DEVICES - n_false, 2), 0.9), SeededEntropy(7)
    honest = collect(spec, points, entropy, entropy.words(len(points)))
    named = np.zeros((n_false, 64), dtype=np.bool_)
    named[:, : mechanism.subset_size if kind == "ss" else 16] = True
    false = RoundAggregator(spec)
    false.add(np.zeros(n_false, dtype=np.int64), np.packbits(named, axis=1, bitorder="little"))
    return Collected(spec, honest.tally + false.result())


@pytest.mark.parametrize("kind", ["ss", "oue"])
def test_honest_devices_pass_and_the_largest_gain_does_not(kind: str) -> None:
    """The seed is set; a round of honest devices fails with a probability below 1e-5."""
    assert find_faults(tally_of(kind, 0)) == []
    assert find_faults(tally_of(kind, N_DEVICES // 5))


def test_a_result_states_the_fault_and_the_bound() -> None:
    params = UniformGrid(epsilon=1, clusters=2, cells=8)
    plan = checking_law(start(params, UNIT, N_DEVICES))
    model = drive(plan, lambda _spec: tally_of("ss", N_DEVICES // 5))
    assert model.verdict == "doubtful"
    assert model.warnings[0].startswith("The reports contradict the mechanism")
    assert "of dishonest devices could have made cluster" in model.warnings[0]
    assert model.dishonest_shares is not None
    assert ((model.dishonest_shares >= 0) & (model.dishonest_shares <= model.sizes + 1e-9)).all()


def test_the_bound_alone_is_no_warning() -> None:
    params = UniformGrid(epsilon=1, clusters=2, cells=8)
    bare = drive(start(params, UNIT, N_DEVICES), lambda _spec: tally_of("ss", 0))
    model = drive(checking_law(start(params, UNIT, N_DEVICES)), lambda _spec: tally_of("ss", 0))
    assert model.dishonest_shares is not None
    assert (model.warnings, model.verdict) == (bare.warnings, bare.verdict)
