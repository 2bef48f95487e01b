"""Test the field of a round and the errors of sizes against their definitions."""

import numpy as np
import pytest

from clustering.density.deconvolution import blur
from clustering.density.shifted_field import coarse_symbols, field, size_errors
from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.records.encodings import symbols
from sfumato.specs import ShiftedGridEncoding
from tests import naive

ENCODINGS = [ShiftedGridEncoding(1, 5, 3), ShiftedGridEncoding(2, 3, 2), ShiftedGridEncoding(3, 2, 2)]
ENCODINGS += [ShiftedGridEncoding(1, 5, 3, (0,)), ShiftedGridEncoding(3, 2, 2, (0, 2))]


def a_tally(encoding, seed, empty_slots=0):
    rng = np.random.default_rng(seed)
    reports = rng.integers(50, 90, encoding.n_slots)
    reports[:empty_slots] = 0
    return Tally(rng.integers(0, reports[:, None] + 1, (encoding.n_slots, encoding.n_symbols)), reports)


class TestField:
    @pytest.mark.parametrize("encoding", ENCODINGS)
    @pytest.mark.parametrize("empty_slots", [0, 1])
    def test_is_the_mean_estimate_of_the_cells_that_contain_a_point(self, encoding, empty_slots):
        reading = decoder(design("auto", encoding.n_symbols, 10**9))
        tally = a_tally(encoding, 1, empty_slots)
        expected = naive.field(encoding, reading.frequencies(tally), tally.reports)
        assert field(encoding, reading, tally) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_coarse_symbols_equal_those_of_devices(self, encoding):
        fine = np.array(list(np.ndindex((encoding.fine_cells,) * encoding.n_features)))
        middles = (fine + 0.5) / encoding.fine_cells
        for slot in range(encoding.n_slots):
            sent = symbols(encoding, middles, np.full(len(fine), slot))
            assert coarse_symbols(encoding, slot).ravel().tolist() == sent.tolist()
            assert sent[5] == naive.coarse_symbol(encoding, slot, tuple(fine[5]))

    def test_of_exact_counts_is_the_blurred_density(self):
        encoding = ShiftedGridEncoding(2, 3, 3)
        density = np.random.default_rng(2).integers(0, 20, (9, 9))
        counts = np.stack(
            [
                np.bincount(coarse_symbols(encoding, slot).ravel(), weights=density.ravel(), minlength=16)
                for slot in range(encoding.n_slots)
            ]
        )
        estimates = counts / density.sum()
        assert naive.field(encoding, estimates, np.ones(9)) == pytest.approx(blur(density / density.sum(), 3))
        on_circles = ShiftedGridEncoding(2, 3, 3, (1,))
        symbols_of = [coarse_symbols(on_circles, slot).ravel() for slot in range(9)]
        counts = np.stack([np.bincount(each, weights=density.ravel(), minlength=12) for each in symbols_of])
        expected = blur(density / density.sum(), 3, (1,))
        assert naive.field(on_circles, counts / density.sum(), np.ones(9)) == pytest.approx(expected)


class TestSizeErrors:
    ENCODING = ShiftedGridEncoding(2, 3, 2)
    READING = decoder(design("auto", 16, 10**9))

    def exact(self, density, n_each=10**6):
        """Return the expected tally of a density, with equally many reports per slot."""
        rows = []
        for slot in range(4):
            symbols = coarse_symbols(self.ENCODING, slot).ravel()
            rows.append(np.bincount(symbols, weights=density.ravel(), minlength=16))
        expected = self.READING.q + np.array(rows) * (self.READING.p - self.READING.q)
        return Tally(np.rint(n_each * expected).astype(np.int64), np.full(4, n_each))

    def test_of_the_only_region_are_zero(self):
        density = np.full((6, 6), 1 / 36)
        errors = size_errors(
            self.ENCODING, self.READING, self.exact(density), np.zeros((6, 6), dtype=np.int64), density
        )
        assert errors == pytest.approx([0.0], abs=1e-4)  # counts are rounded

    def test_of_two_regions_are_equal_and_decrease_with_reports(self):
        density = np.random.default_rng(7).random((6, 6))
        density /= density.sum()
        labels = np.zeros((6, 6), dtype=np.int64)
        labels[:2] = 1
        errors = size_errors(self.ENCODING, self.READING, self.exact(density), labels, density)
        assert errors[0] == pytest.approx(errors[1], rel=1e-3)
        quarter = size_errors(self.ENCODING, self.READING, self.exact(density, 250_000), labels, density)
        assert quarter == pytest.approx(2 * errors, rel=1e-3)

    def test_include_the_misfit(self):
        density = np.full((6, 6), 1 / 36)
        labels = np.zeros((6, 6), dtype=np.int64)
        labels[:2] = 1
        elsewhere = density.copy()
        elsewhere[:2] *= 1.3  # region 1 has a tenth more than in the density
        elsewhere[2:] *= 0.85
        errors = size_errors(self.ENCODING, self.READING, self.exact(elsewhere), labels, density)
        assert errors == pytest.approx([0.1, 0.1], rel=0.2)
