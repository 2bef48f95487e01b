"""Pairs of neighbours: one person apart, in every number of features, and what each is meant to be."""

from collections import Counter

import numpy as np
import pytest

from audit.central import FEATURES
from audit.neighbours import LAST, MANY, MIDDLE, pairs


def rows(records):
    return Counter(map(tuple, records.points.tolist()))


@pytest.mark.parametrize("d", FEATURES)
class TestEachPair:
    def test_differs_by_the_records_of_one_person(self, d: int) -> None:
        for pair in pairs(d):
            assert pair.more.max_per_user == pair.less.max_per_user
            extra = len(pair.more.points) - len(pair.less.points)
            assert 1 <= extra <= pair.more.max_per_user
            assert sum((rows(pair.more) - rows(pair.less)).values()) == extra
            assert not rows(pair.less) - rows(pair.more)

    def test_holds_lattice_places(self, d: int) -> None:
        for pair in pairs(d):
            for records in (pair.more, pair.less):
                assert records.points.dtype == np.int32
                assert records.points.shape[1] == d
                assert ((records.points >= 0) & (records.points <= LAST)).all()

    def test_is_the_same_in_every_run(self, d: int) -> None:
        for one, again in zip(pairs(d), pairs(d), strict=True):
            assert one.more.points.tolist() == again.more.points.tolist()


class TestWhatHurts:
    def named(self, name: str, d: int = 2):
        return next(pair for pair in pairs(d) if pair.name == name)

    def test_every_name_is_said_once_and_what_it_is_for(self) -> None:
        names = [pair.name for pair in pairs(3)]
        assert len(set(names)) == len(names) == 13
        documented = " ".join((pairs.__doc__ or "").split())
        for name in names[2:]:
            assert f"*{name}*" in documented

    def test_somebody_is_there_and_nobody_else(self) -> None:
        for name in ("nobody", "one record"):
            assert (len(self.named(name).less.points), len(self.named(name).more.points)) == (0, 1)

    def test_users_have_several_records_and_all_of_one_go(self) -> None:
        for name in ("a user's records in one corner", "a user's records everywhere"):
            pair = self.named(name)
            assert len(pair.more.points) - len(pair.less.points) == pair.more.max_per_user == MANY
        lone = self.named("one record of a user")
        assert (len(lone.more.points) - len(lone.less.points), lone.more.max_per_user) == (1, MANY)

    def test_a_tie_lies_on_both_sides_of_the_middle(self) -> None:
        points = self.named("a tie at a border").less.points
        assert set(points[:, 0].tolist()) == {MIDDLE - 1, MIDDLE}

    def test_equal_records_are_equal_and_a_far_one_is_far(self) -> None:
        assert len(rows(self.named("all equal").more)) == 1
        far = self.named("one far point")
        assert (far.more.points[-1] == LAST).all()
        assert far.less.points.max() < LAST // 4

    def test_a_record_at_the_head_moves_all_others(self) -> None:
        pair = self.named("at the lattice's ends")
        assert pair.more.points[1:].tolist() == pair.less.points.tolist()
        assert set(pair.more.points.ravel().tolist()) == {0, LAST}
