"""Test the errors of region centres against finite differences and repeated rounds."""

import numpy as np
import pytest

from clustering.density.cell_centres import RegionGeometry, cell_centre_errors
from clustering.density.label_map import centres_of
from clustering.density.synthetic_rounds import SyntheticPopulation
from clustering.rounds.decoders import decoder
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec

LABELS = np.array([[0, 0, 1], [0, 1, 1], [2, 2, 2]])
DENSITY = np.random.default_rng(1).dirichlet(np.ones(9)).reshape(3, 3)


class TestRegionGeometry:
    def test_weights_are_the_slopes_of_the_centre(self):
        places, step = RegionGeometry.of(LABELS, DENSITY), 1e-6
        for cell in range(9):
            moved = DENSITY.copy()
            moved.flat[cell] += step
            slope = (centres_of(LABELS, moved) - centres_of(LABELS, DENSITY)) / step
            expected = np.zeros((3, 2))
            expected[LABELS.flat[cell]] = places.weights[cell]
            assert slope == pytest.approx(expected, abs=1e-4)

    def test_weights_along_a_circle_are_the_slopes_of_the_circular_mean(self):
        density = np.array([0.2, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.3])
        labels = np.array([0, 0, 0, 1, 1, 1, 1, 0])
        places, step = RegionGeometry.of(labels, density, (0,)), 1e-6
        angles = 2 * np.pi * (np.arange(8) + 0.5) / 8
        inside = labels == 0
        mean = np.arctan2((density * np.sin(angles))[inside].sum(), (density * np.cos(angles))[inside].sum())
        assert places.centres[0, 0] == pytest.approx(mean / (2 * np.pi) % 1)
        assert places.widths[:, 0] == pytest.approx([0.5, 0.5])
        for cell in range(8):
            moved = density.copy()
            moved[cell] += step
            slope = (centres_of(labels, moved, (0,)) - places.centres)[:, 0] / step
            assert slope[labels[cell]] == pytest.approx(places.weights[cell, 0], abs=1e-4)

    def test_an_error_is_at_most_the_width_of_the_region(self):
        places = RegionGeometry.of(LABELS, DENSITY)
        assert places.widths == pytest.approx(np.array([[2 / 3, 2 / 3], [2 / 3, 2 / 3], [1 / 3, 1]]))
        assert places.errors(np.full((3, 2), 1e6), 10) == pytest.approx(places.widths)

    def test_an_empty_region_has_finite_errors(self):
        density = np.where(LABELS == 2, 0.0, 1 / 6)
        errors = RegionGeometry.of(LABELS, density).errors(np.zeros((3, 2)), 10)
        assert np.isfinite(errors).all()

    def test_the_width_of_a_cell_counts_once_for_all_its_boxes(self):
        one_cell = RegionGeometry.of(np.zeros((1, 1), dtype=np.int64), np.ones((1, 1)))
        as_boxes = RegionGeometry.of(np.zeros((4, 4), dtype=np.int64), np.full((4, 4), 1 / 16))
        n = 10**12  # no sampling error
        alone = one_cell.errors(np.zeros((1, 2)), n)
        assert alone == pytest.approx(np.full((1, 2), np.sqrt(1 / 12)), rel=1e-3)
        assert as_boxes.errors(np.zeros((1, 2)), n, np.full(16, 16)) == pytest.approx(alone, rel=1e-3)


class TestOneRound:
    def test_centres_deviate_by_their_errors(self):
        encoding = GridEncoding((6, 6))
        spec = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), encoding, design("ss", 36, 10**9))
        x = (np.arange(6) + 0.5) / 6
        density = np.exp(-((x[:, None] - 0.4) ** 2 + (x[None] - 0.6) ** 2) / 0.1)
        density /= density.sum()
        labels, cell_map = np.repeat(x > 0.5, 6).astype(np.int64), np.arange(36).reshape(6, 6)
        reading, n = decoder(spec.mechanism), 40_000
        centres, errors = [], []
        for throw in range(60):
            estimates = reading.frequencies(SyntheticPopulation(density, (n,), throw).collect(spec, 0, throw).tally)[0]
            # without projection, only noise moves the centre
            centres.append(centres_of(labels.reshape(6, 6), estimates.reshape(6, 6)))
            errors.append(cell_centre_errors(labels, cell_map, estimates, estimates, reading, n))
        within = RegionGeometry.of(labels.reshape(6, 6), density)
        floor = within.errors(np.zeros((2, 2)), 10**12)  # the error of places within cells is constant here
        predicted = np.sqrt(np.mean(np.square(errors), axis=0) - floor**2)
        # 60 rounds give a deviation to 9 %
        assert np.std(centres, axis=0) == pytest.approx(predicted, rel=0.35)
