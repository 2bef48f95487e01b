"""Codes of sides: which stand out, which join which, and whose group a code is of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.side_codes import crossed_share, group_codes, label_codes


def masses(n_bits=3, **held):
    """Masses of the codes named by their bits, as in _101; the others hold nobody."""
    out = np.zeros(1 << n_bits)
    for bits, mass in held.items():
        out[int(bits[1:], 2)] = mass
    return out


class TestGroups:
    def test_what_stands_out_comes_by_mass(self):
        found = group_codes(masses(_000=0.3, _111=0.6, _011=0.02, _110=-0.1), 0.05)
        assert found.codes.tolist() == [0b111, 0b000]
        assert found.masses.tolist() == [0.6, 0.3]
        assert found.groups.tolist() == [0, 1]

    def test_a_rim_joins_its_densest_neighbour_and_a_neighbour_of_its_own_weight_does_not(self):
        found = group_codes(masses(_000=0.4, _011=0.3, _001=0.05, _010=0.2), 0.01)
        assert dict(zip(found.codes.tolist(), found.groups.tolist(), strict=True)) == {0: 0, 0b011: 1, 0b010: 2, 1: 0}

    def test_a_rim_of_a_rim_joins_the_same_group(self):
        found = group_codes(masses(_000=0.8, _001=0.1, _011=0.01), 0.001)
        assert found.groups.tolist() == [0, 0, 0]

    def test_two_bits_apart_nothing_joins(self):
        assert group_codes(masses(_000=0.8, _011=0.01), 0.001).n_groups == 2

    def test_nothing_stands_out_of_noise_alone(self):
        found = group_codes(np.full(8, 0.125), 0.2)
        assert (found.codes.size, found.n_groups) == (0, 0)
        assert label_codes(8, found).tolist() == [0] * 8
        assert crossed_share(found) == 0

    def test_the_largest_groups_count_their_rims(self):
        found = group_codes(masses(4, _0000=0.3, _0001=0.05, _0111=0.32, _1110=0.2), 0.01)
        kept = found.largest(2)
        assert sorted(kept.codes.tolist()) == [0b0000, 0b0001, 0b0111]
        assert kept.n_groups == 2
        one = found.largest(1)
        assert sorted(one.codes.tolist()) == [0b0000, 0b0001]
        assert one.groups.tolist() == [0, 0]
        assert found.largest(9).codes.tolist() == found.codes.tolist()


class TestLabels:
    def test_each_code_is_of_the_nearest_group_and_of_the_denser_where_two_are_as_near(self):
        found = group_codes(masses(_000=0.3, _011=0.6), 0.05)
        assert label_codes(8, found).tolist() == [1, 0, 0, 0, 1, 0, 0, 0]

    @settings(deadline=None, max_examples=50)
    @given(st.integers(1, 6), st.data())
    def test_every_group_has_its_own_codes_and_every_code_a_nearest_kept_one(self, n_bits, data):
        values = data.draw(st.lists(st.floats(-0.2, 1), min_size=1 << n_bits, max_size=1 << n_bits))
        found = group_codes(np.array(values), 0.1)
        labels = label_codes(1 << n_bits, found)
        assert labels[found.codes].tolist() == found.groups.tolist()
        if found.n_groups:
            for code, label in enumerate(labels.tolist()):
                apart = [bin(code ^ kept).count("1") for kept in found.codes.tolist()]
                nearest = {int(g) for a, g in zip(apart, found.groups, strict=True) if a == min(apart)}
                assert label in nearest

    def test_twelve_bits_all_kept_are_labelled(self):
        values = np.linspace(1, 2, 4096)
        assert label_codes(4096, group_codes(values, 0.5)).shape == (4096,)


class TestCrossed:
    @pytest.mark.parametrize(
        ("held", "share"),
        [
            ({"_000": 0.5, "_111": 0.5}, 0),
            ({"_000": 0.5, "_001": 0.5}, 1),
            ({"_000": 0.2, "_001": 0.2, "_110": 0.6}, 0.4),
            ({"_000": 0.8, "_001": 0.1}, 0),  # one group
        ],
    )
    def test_is_the_share_of_people_one_bit_from_another_group(self, held, share):
        assert crossed_share(group_codes(masses(**held), 0.01)) == pytest.approx(share)
