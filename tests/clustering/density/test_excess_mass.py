"""Test the excess-of-mass tree and its regions against components as sets of cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.density.excess_mass import BumpTree, above_saddle, bumps, regions
from tests import naive


def densities(shapes):
    # whole numbers below 12 make many ties; dividing by a power of two keeps sums exact
    return shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 11)).map(lambda a: a / 1024))


SHAPES = st.one_of(
    st.tuples(st.integers(1, 20)),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)


class TestTree:
    @settings(max_examples=40, deadline=None)
    @given(densities(SHAPES), st.data())
    def test_connects_each_cell_to_the_peak_at_the_level_of_a_search(self, density, data):
        wide = [axis for axis, n_cells in enumerate(density.shape) if n_cells > 1]
        circles = data.draw(st.sets(st.sampled_from(wide))) if wide else set()
        found = BumpTree(density, sorted(circles)).connect_to_peak()
        assert found.tolist() == naive.connect_to_peak(density, circles).tolist()

    @settings(max_examples=60, deadline=None)
    @given(densities(SHAPES), st.data())
    def test_equals_sets_of_cells(self, density, data):
        wide = [axis for axis, n_cells in enumerate(density.shape) if n_cells > 1]
        circles = data.draw(st.sets(st.sampled_from(wide))) if wide else set()
        _, scores = naive.grow_components(density, circles=circles)
        kept = data.draw(st.sets(st.sampled_from(sorted(scores)))) if scores else set()
        homes, ended = naive.grow_components(density, frozenset(kept), circles)
        grown = BumpTree(density, sorted(circles)).grow(sorted(kept))
        for home, cell in zip(grown.parent, np.ndindex(density.shape), strict=True):
            assert grown.bump(int(home)).peak == homes[cell]
            found = grown.bump(int(np.ravel_multi_index([c + 1 for c in cell], grown.shape)))
            assert found.peak == cell
            saddle, excess, mass = ended.get(cell, (None, 1.0, 1.0))
            assert found.saddle == saddle
            assert (found.excess, found.mass) == pytest.approx((excess, mass), abs=1e-12)


def round_bumps(*places, cells=24, width=0.05):
    """Return a density of round bumps (x, y, weight)."""
    x = (np.arange(cells) + 0.5) / cells
    density = np.full((cells, cells), 1e-4)
    for a, b, weight in places:
        bump = np.exp(-0.5 * ((x[:, None] - a) ** 2 + (x[None] - b) ** 2) / width**2)
        density += weight * bump / bump.sum()
    return density / density.sum()


THREE = round_bumps((0.2, 0.2, 0.5), (0.8, 0.2, 0.3), (0.52, 0.8, 0.2))


class TestBumps:
    def test_are_in_order_of_the_mass_above_their_saddle(self):
        whole, second, third = bumps(THREE)
        assert (whole.saddle, whole.excess) == (None, 1.0)
        assert (second.excess, third.excess) == pytest.approx((0.3, 0.2), rel=0.1)
        assert second.peak == (19, 4)
        assert second.excess < second.mass

    def test_a_flat_density_has_the_whole_only(self):
        assert len(bumps(np.full((6, 6), 1 / 36))) == 1
        assert len(bumps(np.ones((1, 1)))) == 1

    @given(SHAPES, st.randoms(use_true_random=False))
    def test_weights_of_a_bump_give_its_excess(self, shape, random):
        values = list(range(int(np.prod(shape))))  # different values, because a plateau has no single saddle cell
        random.shuffle(values)
        density = np.array(values).reshape(shape) / 4096
        found = bumps(density)[1:]
        saddles = [bump.saddle for bump in found]
        for bump in found:
            weighed = (above_saddle(density, bump) * density).sum()
            if saddles.count(bump.saddle) == 1:
                assert weighed == pytest.approx(bump.excess, abs=1e-9)
            else:
                assert 0 < weighed < bump.excess + 1e-9

    def test_the_whole_has_weight_one(self):
        assert above_saddle(THREE, bumps(THREE)[0]).tolist() == np.ones(THREE.shape).tolist()


class TestRegions:
    def test_are_in_order_of_mass_with_their_excess(self):
        cut = regions(THREE, bumps(THREE))
        assert (cut.labels[4, 4], cut.labels[19, 4], cut.labels[12, 19]) == (0, 1, 2)
        assert [bump.peak for bump in cut.bumps] == [(4, 4), (19, 4), (12, 19)]
        assert [bump.excess for bump in cut.bumps] == pytest.approx([0.5, 0.3, 0.2], rel=0.1)
        assert all(bump.saddle is not None for bump in cut.bumps)

    def test_one_bump_has_all_cells(self):
        cut = regions(THREE, bumps(THREE)[:1])
        assert (cut.labels == 0).all()
        assert cut.bumps[0].saddle is None

    @given(densities(SHAPES), st.integers(1, 30))
    def test_are_as_many_as_the_given_bumps(self, density, n_kept):
        kept = bumps(density)[:n_kept]
        cut = regions(density, kept)
        assert {bump.peak for bump in cut.bumps} == {bump.peak for bump in kept}
        assert np.unique(cut.labels).tolist() == list(range(len(kept)))

    def test_any_number_of_equal_bumps_may_be_given(self):
        density = np.zeros((9, 9))
        density[1::4, 1::4] = 1 / 4  # four cells
        for n_kept in range(1, 5):
            assert len(regions(density, bumps(density)[:n_kept]).bumps) == n_kept
        assert len(bumps(density)) == 4


class TestCircle:
    @pytest.mark.parametrize("circles", [(0,), (1,), (0, 1)])
    def test_the_seam_makes_no_difference(self, circles):
        steps = tuple(9 if axis in circles else 0 for axis in (0, 1))
        rolled = np.roll(THREE, steps, axis=(0, 1))
        own, turned = BumpTree(THREE, circles).bumps(), BumpTree(rolled, circles).bumps()
        assert [each.excess for each in own[:3]] == pytest.approx([each.excess for each in turned[:3]])
        for one, other in zip(own[1:3], turned[1:3], strict=True):
            weights = np.roll(above_saddle(THREE, one, circles), steps, axis=(0, 1))
            assert weights == pytest.approx(above_saddle(rolled, other, circles))
            assert (rolled * weights).sum() == pytest.approx(other.excess)
        one, other = BumpTree(THREE, circles).regions(own[:3]), BumpTree(rolled, circles).regions(turned[:3])
        assert np.roll(one.labels, steps, axis=(0, 1)).tolist() == other.labels.tolist()

    def test_a_bump_over_the_seam_is_one(self):
        x = (np.arange(24) + 0.5) / 24
        density = np.exp(-0.5 * (np.minimum(x, 1 - x) / 0.08) ** 2)
        density /= density.sum()
        assert len([each for each in bumps(density) if each.excess > 0.1]) == 2
        assert len(BumpTree(density, (0,)).bumps()) == 1
