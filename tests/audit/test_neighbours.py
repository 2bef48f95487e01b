"""Pairs of neighbours: they differ by one person and have their documented difficulty."""

from collections import Counter

import numpy as np
import pytest

from audit.central.recordings import N_FEATURES
from audit.checks.neighbours import LAST, MIDDLE, USER_RECORDS, make_pairs


def count_rows(records):
    return Counter(map(tuple, records.points.tolist()))


@pytest.mark.parametrize("d", N_FEATURES)
class TestEachPair:
    def test_the_datasets_differ_by_the_records_of_one_person(self, d: int) -> None:
        for pair in make_pairs(d):
            assert pair.more.max_per_user == pair.less.max_per_user
            extra = len(pair.more.points) - len(pair.less.points)
            assert 1 <= extra <= pair.more.max_per_user
            assert sum((count_rows(pair.more) - count_rows(pair.less)).values()) == extra
            assert not count_rows(pair.less) - count_rows(pair.more)

    def test_records_are_lattice_places(self, d: int) -> None:
        for pair in make_pairs(d):
            for records in (pair.more, pair.less):
                assert records.points.dtype == np.int32
                assert records.points.shape[1] == d
                assert ((records.points >= 0) & (records.points <= LAST)).all()

    def test_every_run_uses_the_same_pairs(self, d: int) -> None:
        for one, repeated in zip(make_pairs(d), make_pairs(d), strict=True):
            assert one.more.points.tolist() == repeated.more.points.tolist()


class TestPairs:
    def find_pair(self, name: str, d: int = 2):
        return next(pair for pair in make_pairs(d) if pair.name == name)

    def test_names_are_unique_and_documented(self) -> None:
        names = [pair.name for pair in make_pairs(3)]
        assert len(set(names)) == len(names) == 13
        documented = " ".join((make_pairs.__doc__ or "").split())
        for name in names:
            assert f"*{name}*" in documented

    def test_one_record_against_none(self) -> None:
        for name in ("no record, one in the middle", "no record, one in a corner"):
            assert (len(self.find_pair(name).less.points), len(self.find_pair(name).more.points)) == (0, 1)

    def test_a_user_has_several_records_and_all_are_removed(self) -> None:
        for name in ("user records in one corner", "user records on the diagonal"):
            pair = self.find_pair(name)
            assert len(pair.more.points) - len(pair.less.points) == pair.more.max_per_user == USER_RECORDS
        single = self.find_pair("user with one record")
        assert (len(single.more.points) - len(single.less.points), single.more.max_per_user) == (1, USER_RECORDS)

    def test_tied_records_lie_on_both_sides_of_the_middle(self) -> None:
        points = self.find_pair("tie at a border").less.points
        assert set(points[:, 0].tolist()) == {MIDDLE - 1, MIDDLE}

    def test_equal_records_and_a_far_record(self) -> None:
        assert len(count_rows(self.find_pair("equal records").more)) == 1
        far = self.find_pair("one far point")
        assert (far.more.points[-1] == LAST).all()
        assert far.less.points.max() < LAST // 4

    def test_a_record_at_the_head_shifts_all_others(self) -> None:
        pair = self.find_pair("ends of the lattice")
        assert pair.more.points[1:].tolist() == pair.less.points.tolist()
        assert set(pair.more.points.ravel().tolist()) == {0, LAST}
