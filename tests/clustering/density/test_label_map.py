"""Test the label map of grid plans: regions, projection to shares and the model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.density.label_map import (
    dense_components,
    fill_nearest,
    keep_largest,
    label_map_model,
    project_to_shares,
    rank_by_mass,
    region_totals,
)
from sfumato.specs import Feature
from tests import naive

MASKS = st.one_of(
    st.tuples(st.integers(1, 12)),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
).flatmap(lambda shape: arrays(np.bool_, shape))


class TestDenseComponents:
    @given(MASKS)
    def test_are_connected_by_faces(self, dense):
        assert dense_components(dense).tolist() == naive.dense_components(dense).tolist()


class TestKeepLargest:
    def test_keeps_by_mass_and_numbers_by_mass(self):
        labels = np.array([0, 0, -1, 1, 2, 2])
        mass = np.array([0.1, 0.1, 0.5, 0.3, 0.4, 0.1])
        assert keep_largest(labels, mass, 2).tolist() == [-1, -1, -1, 1, 0, 0]
        assert keep_largest(labels, mass, 9).tolist() == [2, 2, -1, 1, 0, 0]
        assert keep_largest(np.full(3, -1), np.ones(3), 2).tolist() == [-1, -1, -1]


class TestByMass:
    def test_numbers_by_descending_mass(self):
        labels, order = rank_by_mass(np.array([0, 1, 1, 2]), np.array([0.3, 0.1, 0.1, 0.5]))
        assert labels.tolist() == [1, 2, 2, 0]
        assert order.tolist() == [2, 0, 1]


class TestFillNearest:
    @settings(max_examples=50)
    @given(MASKS, st.data())
    def test_uses_a_nearest_label(self, dense, data):
        labels = np.where(dense, data.draw(arrays(np.int64, dense.shape, elements=st.integers(0, 3))), -1)
        filled = fill_nearest(labels)
        for cell in np.ndindex(labels.shape):
            _, names = naive.nearest_distance(labels, cell)
            assert filled[cell] in (names or {0})
            if labels[cell] >= 0:
                assert filled[cell] == labels[cell]


class TestProjection:
    @given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)))
    def test_is_the_nearest_point_of_the_simplex(self, estimates):
        shares = project_to_shares(estimates)
        assert (shares >= 0).all()
        assert shares.sum() == pytest.approx(1)
        # optimality: estimate - share is constant for positive shares and not larger for others
        gap = estimates - shares
        constant = gap[shares > 1e-9].max()
        assert gap[shares > 1e-9] == pytest.approx(constant, abs=1e-6)
        assert (gap <= constant + 1e-6).all()

    def test_keeps_shares(self):
        assert project_to_shares(np.array([[0.5, 0.25], [0.25, 0]])).tolist() == [[0.5, 0.25], [0.25, 0]]


class TestModel:
    FEATURES = (Feature("x", 0, 10), Feature("y", -1, 1))

    def model(self, labels, density):
        errors = np.zeros(int(labels.max()) + 1)
        return label_map_model(self.FEATURES, labels, density, errors, np.array([[0.1, 0.2]] * len(errors)), {}, ())

    def test_has_sizes_and_centres_in_feature_units(self):
        labels = np.array([[0, 0], [1, 1]])
        model = self.model(labels, np.array([[0.3, 0.3], [0.4, 0.0]]))
        assert model.sizes == pytest.approx([0.6, 0.4])
        assert model.centroids == pytest.approx(np.array([[2.5, 0.0], [7.5, -0.5]]))
        assert model.centroid_errors == pytest.approx(np.array([[1.0, 0.4], [1.0, 0.4]]))

    def test_the_centre_of_an_empty_region_is_its_middle(self):
        model = self.model(np.array([[0, 0], [1, 1]]), np.array([[0.5, 0.5], [0.0, 0.0]]))
        assert model.centroids == pytest.approx(np.array([[2.5, 0.0], [7.5, 0.0]]))

    @pytest.mark.parametrize("converged", [True, False])
    def test_warns_if_the_fit_did_not_converge(self, converged):
        labels, density, errors = np.array([[0, 1]]), np.array([[0.5, 0.5]]), np.zeros((2, 2))
        diagnostics = {"converged": converged}
        model = label_map_model(self.FEATURES, labels, density, errors[0], errors, diagnostics, ("other",))
        assert ("before it converged" in " ".join(model.warnings)) is not converged
        assert model.warnings[0] == "other"

    def test_each_field_has_a_privacy_status(self):
        model = self.model(np.zeros((2, 2), dtype=np.int64), np.full((2, 2), 0.25))
        assert set(model.privacy) == set(model.to_wire())
        assert model.privacy["labels"] == "post_processed"
        assert model.privacy["features"] == "public"

    def test_totals_omit_unlabelled_cells(self):
        assert region_totals(np.array([-1, 1, 0, 1]), np.array([9.0, 1, 2, 3])).tolist() == [2, 4]
