"""Levels of a label map: choice, nesting, and boundaries of refits."""

import numpy as np
import pytest

from clustering.density.levels import choose_levels, describe_levels
from clustering.density.map_agreement import Comparison, Selection
from sfumato.model.levels import levels_of
from sfumato.model.precision import ExpectedAgreement
from tests.clustering.density.test_excess_mass import round_bumps
from tests.clustering.density.test_map_agreement import Fit

AGREEMENT = ExpectedAgreement(0.9, 0.8, 1.0)
PAIRS = round_bumps((0.2, 0.2, 0.3), (0.35, 0.2, 0.2), (0.8, 0.8, 0.3), (0.8, 0.65, 0.2))
ONE_PAIR = round_bumps((0.2, 0.2, 0.3), (0.35, 0.2, 0.2), (0.8, 0.8, 0.5))


class TestChoice:
    @pytest.mark.parametrize(
        ("scores", "chosen"),
        [
            ({}, ()),
            ({2: 0.9}, (2,)),
            ({2: 0.9, 3: 0.6, 4: 0.95, 5: 0.8}, (2, 4)),
            ({2: 0.5, 3: 0.6, 4: 1.0, 5: 0.8}, (4,)),
            ({2: 0.9, 3: 0.4, 4: 0.8, 5: 0.4, 6: 0.85, 7: 0.4, 8: 0.7}, (2, 4, 6)),
            ({2: 0.5, 3: 0.4, 4: 1.0, 5: 0.7}, (4,)),  # further than .4
            ({2: 0.9, 3: 0.9, 4: 0.9}, (2,)),
        ],
    )
    def test_takes_the_local_maxima_near_the_best(self, scores: dict[int, float], chosen: tuple[int, ...]) -> None:
        assert choose_levels(scores) == chosen


class TestDescription:
    def of(self, fit: Fit) -> dict:
        comparison = Comparison(fit, Selection())
        return describe_levels(fit.tree, comparison, {4: AGREEMENT, 2: AGREEMENT}, 2)

    def test_maps_are_nested(self) -> None:
        fit = Fit(PAIRS)
        found = self.of(fit)
        coarse, fine = levels_of(found, Comparison(fit, Selection()).labels(2))
        assert (coarse.clusters, fine.clusters, coarse.parents) == (2, 4, ())
        assert (np.array(fine.parents)[fine.label_map] == coarse.label_map).all()
        assert sorted(fine.parents) == [0, 0, 1, 1]
        assert (fine.sizes.sum(), coarse.sizes.sum()) == pytest.approx((1, 1))
        assert found["levels"][0]["labels"] is None

    def test_a_boundary_has_the_share_of_refits_that_have_it(self) -> None:
        found = self.of(Fit(PAIRS, [PAIRS, PAIRS, PAIRS, ONE_PAIR], (PAIRS, ONE_PAIR)))
        assert [each["clusters"] for each in found["merges"]] == [2, 3, 4]
        assert found["merges"][0]["probability"] == 1
        # there is a single peak in one of six synthetic rounds and in one of two halves
        assert sorted(each["probability"] for each in found["merges"][1:]) == [0.75, 1]

    def test_one_cluster_has_none(self) -> None:
        fit = Fit(PAIRS)
        assert describe_levels(fit.tree, Comparison(fit, Selection()), {}, 1) == {"levels": [], "merges": []}
