"""Test the curator: charges, sensitivities, noise and stored answers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central import noise
from clustering.central.cells import GridCells, NearestCells
from clustering.central.curator import LARGEST
from clustering.central.noise import LaplaceNoise
from clustering.central.queries import Shares
from clustering.errors import BudgetOverdrawn
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE
from tests.clustering.central.journals import (
    KeepingJournal,
    NoEntropy,
    RefusingJournal,
    UnreadableCells,
    curator_of,
    remove_noise,
    some_records,
)

places = st.integers(0, LATTICE - 1)


class TestCharges:
    def test_charges_before_reading_records(self) -> None:
        curator = curator_of(some_records(), journal=RefusingJournal(), entropy=NoEntropy())
        with pytest.raises(BudgetOverdrawn):
            curator.counts(UnreadableCells(), 5)
        with pytest.raises(BudgetOverdrawn):
            curator.sums(UnreadableCells(), np.zeros((4, 2), np.int64), np.ones(4, np.int64), Shares(3, 2))

    def test_stores_an_answer_before_returning_it(self) -> None:
        journal = KeepingJournal()
        answer = curator_of(some_records(), journal=journal).counts(GridCells((2, 2)), 1000)
        assert journal.answers[0].tolist() == answer.tolist()

    def test_rejects_overspending_by_one_nano_without_drawing(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), 1000, journal=journal)
        curator.count(400)
        with pytest.raises(BudgetOverdrawn) as refused:
            curator.counts(GridCells((2, 2)), 601)
        assert (refused.value.cost_nano, refused.value.left_nano) == (601, 600)
        assert len(journal.charges) == len(journal.answers) == 1
        curator.counts(GridCells((2, 2)), 600)
        assert (curator.spent_nano, curator.left_nano) == (1000, 0)
        with pytest.raises(BudgetOverdrawn):
            curator.count(1)

    @pytest.mark.parametrize("epsilon_nano", [0, -5])
    def test_rejects_zero_cost(self, epsilon_nano: int) -> None:
        with pytest.raises(ValueError, match="at least one"):
            curator_of(some_records()).count(epsilon_nano)

    def test_odometer_lists_every_query_and_cost(self) -> None:
        curator = curator_of(some_records())
        centres = np.full((3, 2), LATTICE // 2)
        curator.count(10)
        curator.sums(NearestCells(centres), centres, np.full(3, 9), Shares(20, 30, 40))
        curator.squares(NearestCells(centres), centres, 50)
        listed = [(query.description, query.epsilon_nano, query.n_values) for query in curator.odometer]
        assert listed == [("count", 10, 1), ("sums", 20, 6), ("counts", 30, 3), ("sizes", 40, 3), ("squares", 50, 3)]
        assert curator.spent_nano == 150


class TestRefused:
    """Unsound queries are rejected before the charge."""

    def test_rejects_excessive_scale(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), journal=journal, max_per_user=1_000_000)
        cells = GridCells((2, 1))
        with pytest.raises(InvalidSpec, match="too small for a query"):
            curator.squares(cells, np.full((2, 2), 7), 1000)
        assert curator.odometer == ()
        assert journal.charges == []
        assert len(curator.counts(cells, 1000)) == 2

    @pytest.mark.parametrize("place", [-1, LATTICE, -(1 << 63)])
    def test_rejects_centres_outside_the_box(self, place: int) -> None:
        curator = curator_of(some_records())
        centres = np.array([[5, 5], [5, place]])
        cells = GridCells((2, 1))
        with pytest.raises(ValueError, match="centres must be lattice places"):
            curator.sums(cells, centres, np.array([9, 9]), Shares(5, 5))
        with pytest.raises(ValueError, match="centres must be lattice places"):
            curator.squares(cells, centres, 5)
        assert curator.odometer == ()

    def test_rejects_another_number_of_centres(self) -> None:
        curator = curator_of(some_records())
        with pytest.raises(ValueError, match="centres must have shape"):
            curator.squares(GridCells((2, 1)), np.full((3, 2), 7), 5)
        assert curator.odometer == ()


class TestReplay:
    def collected(self, curator):
        centres = np.array([[1000, 2000], [500_000, 900_000]])
        answer = curator.sums(NearestCells(centres), centres, np.array([40_000, 70_000]), Shares(300, 200, 100))
        rest = (curator.count(50), curator.counts(GridCells((3, 2)), 60))
        return [*(part.tolist() for part in answer), rest[0], rest[1].tolist()]

    def test_stored_answers_are_returned_without_records_or_noise(self) -> None:
        journal = KeepingJournal()
        first = self.collected(curator_of(some_records(), journal=journal))
        again = KeepingJournal(journal.answers)
        no_records = np.zeros((0, 2), dtype=np.int32)
        assert self.collected(curator_of(no_records, journal=again, entropy=NoEntropy())) == first
        assert again.charges == journal.charges
        assert again.n_kept == 0


class TestSensitivity:
    """One more record changes no answer by more than its declared sensitivity, in total."""

    @given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 1 << 24))
    def test_sums_counts_and_squares(self, data: st.DataObject, d: int, k: int, radius: int) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 6), st.just(d)), elements=places))
        more = data.draw(arrays(np.int32, (1, d), elements=places))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        radii = data.draw(arrays(np.int64, k, elements=st.integers(1, radius)))
        with pytest.MonkeyPatch.context() as patch:
            noises, answers = remove_noise(patch, LaplaceNoise), []
            for records in (points, np.concatenate([points, more])):
                journal = KeepingJournal()
                curator = curator_of(records, journal=journal)
                cells = NearestCells(centres)
                curator.sums(cells, centres, radii, Shares(1, 1, 1))
                curator.squares(cells, centres, 1)
                curator.counts(GridCells((3,) * d), 1)
                curator.count(1)
                answers.append(journal.answers)
        assert len(answers[0]) == 6
        for before, after, drawn in zip(*answers, noises[:6], strict=True):
            pairs = zip(before, after, drawn.sensitivities, strict=True)
            assert sum(Fraction(abs(int(b - a)), int(s)) for a, b, s in pairs) <= 1

    def test_sums_attain_the_sensitivity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        noises = remove_noise(monkeypatch, LaplaceNoise)
        centre = np.full((1, 3), LATTICE // 2)
        far = np.zeros((1, 3), dtype=np.int32)
        answer = curator_of(far).sums(NearestCells(centre), centre, np.array([3 * LATTICE // 2]), Shares(1, 1, 1))
        assert np.abs(answer.residuals).sum() == noises[0].sensitivities[0] == 3 * LATTICE // 2
        assert answer.sizes.tolist() == noises[2].sensitivities.tolist()

    @pytest.mark.parametrize("max_per_user", [1, 7])
    def test_noise_grows_with_records_per_user(self, max_per_user: int, monkeypatch: pytest.MonkeyPatch) -> None:
        scales: list[Fraction] = []

        def drawn(scale, n, entropy):
            scales.append(scale)
            return np.zeros(n, dtype=np.int64)

        monkeypatch.setattr(noise, "discrete_laplace", drawn)
        curator = curator_of(some_records(), max_per_user=max_per_user)
        curator.count(1000)
        centres = np.zeros((2, 2), dtype=np.int64)
        curator.sums(NearestCells(centres), centres, np.array([5, 9]), Shares(2000, 4000))
        assert scales == [Fraction(s * max_per_user * NANO, e) for s, e in [(1, 1000), (5, 2000), (9, 2000), (1, 4000)]]
        assert curator.variance(5, 2000) == pytest.approx(2 * float(scales[1]) ** 2, rel=1e-6)

    def test_noise_has_the_declared_scale(self) -> None:
        answer = curator_of(np.zeros((0, 1)), seed=5).counts(GridCells((20_000,)), NANO // 4)
        assert np.abs(answer).mean() == pytest.approx(4, rel=0.05)
        assert curator_of(np.zeros((0, 1))).variance(1, NANO // 4) == pytest.approx(answer.astype(float).var(), rel=0.1)

    def test_answer_is_clamped_after_the_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "discrete_laplace", lambda scale, n, entropy: np.full(n, -(2**62)))
        assert curator_of(some_records()).count(1) == -LARGEST
