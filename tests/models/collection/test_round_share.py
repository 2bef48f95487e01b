"""A round waits for its share of the devices that its collection expects, less the random deviation."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from models.tables.rounds import CollectionTarget
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.sizing.rounds import expected_reports
from sfumato.specs import Participation
from tests.models.world import World

HALF = Participation(0, DRAW_SPAN // 2)


def draws_of(width: int) -> Participation:
    return Participation(5, 5 + width) if width + 5 <= DRAW_SPAN else Participation(0, width)


class TestAnswering:
    @pytest.mark.parametrize("n", [0, 1, 7, 150_000, 2**53 - 1])
    def test_the_whole_draw_is_every_device(self, n: int) -> None:
        assert expected_reports(n, Participation()) == n

    @pytest.mark.parametrize(
        ("n", "expected"),
        [
            (0, 0),
            (1, 1),  # 1/2 - 3/2 would be none
            (9, 1),  # 4.5 - 4.5
            (16, 2),  # 8 - 6
            (17, 2),  # 8.5 - 6.2
            (100, 35),  # 50 - 15
            (10_000, 4850),  # 5000 - 150
            (10_001, 4850),  # 5000.5 - 150.007: cut to whole devices
        ],
    )
    def test_half_of_the_draws_is_half_of_the_devices_less_three_standard_deviations(
        self, n: int, expected: int
    ) -> None:
        assert expected_reports(n, HALF) == expected

    def test_where_the_draws_lie_does_not_matter(self) -> None:
        assert expected_reports(10_000, Participation(DRAW_SPAN // 2, DRAW_SPAN)) == expected_reports(10_000, HALF)

    def test_a_tiny_share_is_one_device(self) -> None:
        assert expected_reports(2**53 - 1, Participation(0, 1)) == 1
        assert expected_reports(10_000, draws_of(DRAW_SPAN // 10_000)) == 1

    def test_it_is_exact_where_floats_are_not(self) -> None:
        n, width = 2**53 - 1, DRAW_SPAN - 1  # n p lies less than an n-th below n
        share, p = expected_reports(n, draws_of(width)), Fraction(width, DRAW_SPAN)
        assert share <= n * p < n
        assert (n * p - share) ** 2 >= 9 * n * p * (1 - p)
        assert (n * p - share - 1) ** 2 < 9 * n * p * (1 - p) or share + 1 > n * p

    @pytest.mark.parametrize("n", [20, 100, 1000, 15_000, 1_000_000])
    def test_too_few_answer_one_round_in_250_at_most_and_it_is_no_lower_than_that_takes(self, n: int) -> None:
        shares = np.concatenate([np.logspace(-4, -0.01, 60), 1 - np.logspace(-6, -1.1, 40)])
        for p in shares:
            share = expected_reports(n, draws_of(int(p * DRAW_SPAN)))
            if share > 1:
                assert binom.cdf(share - 1, n, p) < (1 / 250 if p > 0.5 else 1 / 700)
            if 1000 < n * p < n - 1000:  # the binomial is nearly normal: the deviation is at most the stated one
                assert binom.cdf(share + 1, n, p) > 1 / 1000

    def test_more_devices_or_more_draws_are_never_fewer_answers(self) -> None:
        by_devices = [expected_reports(n, draws_of(DRAW_SPAN // 3)) for n in range(2000)]
        by_draws = [expected_reports(1000, draws_of(DRAW_SPAN * i // 500)) for i in range(1, 501)]
        assert by_devices == sorted(by_devices)
        assert by_draws == sorted(by_draws)


class TestSharesOfACollection:
    def test_target_and_minimum_are_shared_the_time_is_not(self) -> None:
        assert CollectionTarget(10_000, 100, 60).share(HALF) == CollectionTarget(4850, 35, 60)
        assert CollectionTarget(10_000, 0, 60).share(HALF) == CollectionTarget(4850, 0, 60)

    def test_a_job_s_round_waits_for_its_share(self, world: World) -> None:
        world.submit(world.new_dataset())
        opened = world.open_for(world.claimed(), collect=CollectionTarget(10_000, 100, 60), lo=0.5, hi=1)

        assert (opened.target_reports, opened.min_reports) == (4850, 35)

    def test_a_round_for_everybody_waits_for_everybody(self, world: World) -> None:
        world.submit(world.new_dataset())
        opened = world.open_for(world.claimed(), collect=CollectionTarget(10_000, 100, 60))

        assert (opened.target_reports, opened.min_reports) == (10_000, 100)

    def test_what_the_dataset_needs_every_round_needs_in_full(self, world: World) -> None:
        world.submit(world.new_dataset(min_reports=50))
        opened = world.open_for(world.claimed(), collect=CollectionTarget(70, 60, 60), lo=0.5, hi=1)

        assert (opened.target_reports, opened.min_reports) == (50, 50)

    def test_a_round_of_its_own_waits_for_what_it_was_told(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset(), collect=CollectionTarget(10_000, 100, 60), lo=0, hi=0.5)

        assert (opened.target_reports, opened.min_reports) == (10_000, 100)
