"""Test collected rounds and the driver of plans."""

import numpy as np
import pytest

from clustering.errors import TallyMalformed, UnfitRound
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Sample, Tally
from sfumato.mechanisms import design
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import DiscreteLaplaceMechanism, GridEncoding, LatticeEncoding, RoundSpec
from tests.clustering.local_plans import features

XY = features(2)
LATTICE = RoundSpec(XY, LatticeEncoding(2, 10), DiscreteLaplaceMechanism.design(2, 10, 10**9))


def grid_round(*cells):
    encoding = GridEncoding(cells)
    return RoundSpec(XY, encoding, design("grr", encoding.n_symbols, 10**9))


GRID = grid_round(2, 2)


def sample_of(*row):
    return Sample(np.array([row], dtype=np.int32))


class TestCollected:
    def test_has_either_a_tally_or_a_sample(self):
        assert Collected(LATTICE, sample_of(1, 2)).sample.n_reports == 1
        with pytest.raises(UnfitRound, match="not counts"):
            Collected(LATTICE, sample_of(1, 2)).tally  # noqa: B018
        with pytest.raises(UnfitRound, match="no sample"):
            Collected(GRID, Tally.empty(GRID)).sample  # noqa: B018

    @pytest.mark.parametrize(
        ("spec", "aggregate"),
        [
            (LATTICE, Tally.empty(GRID)),
            (LATTICE, sample_of(0, 0, 0)),
            (LATTICE, sample_of(0, 10 + LATTICE.mechanism.margin + 1)),
            (LATTICE, sample_of(-LATTICE.mechanism.margin - 1, 0)),
            (GRID, sample_of(0, 0)),
            (GRID, Tally.empty(grid_round(2, 3))),
        ],
    )
    def test_refuses_an_aggregate_of_another_round(self, spec, aggregate):
        with pytest.raises(TallyMalformed, match="different round"):
            Collected(spec, aggregate)


class TestDrive:
    def test_collects_each_round_and_returns_the_model(self):
        def plan():
            first = yield GRID
            second = yield grid_round(2, 4)
            marks = [first.tally.n_reports, second.spec.encoding.cells]
            return ClusterModel("centroids", XY, np.ones(1), np.zeros(1), diagnostics={"marks": marks})

        def collect(spec):
            tally = Tally.empty(spec)
            tally.reports[0] = spec.encoding.n_symbols
            return Collected(spec, tally)

        assert drive(plan(), collect).diagnostics["marks"] == [4, (2, 4)]

    def test_closes_the_plan_if_a_collection_fails(self):
        closed = []

        def plan():
            try:
                yield GRID
            finally:
                closed.append(True)

        def collect(spec):
            raise LookupError("no such round")

        with pytest.raises(LookupError):
            drive(plan(), collect)
        assert closed == [True]
