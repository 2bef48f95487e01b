"""The curator: it charges first, its noise is what a record can change, and an answer that was given is given again."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering import noise
from clustering.central.cells import GridCells, NearestCells
from clustering.curator import LARGEST, SQUARE_BITS, Shares
from clustering.errors import BudgetOverdrawn
from clustering.kernels.residuals import add_residuals, add_squares
from clustering.noise import LaplaceNoise
from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE
from tests import naive
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of

places = st.integers(0, LATTICE - 1)


def some_records(n=200, d=2, seed=3):
    return np.random.default_rng(seed).integers(0, LATTICE, (n, d)).astype(np.int32)


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Answers without noise, and what each of them says one record changes it by."""
    asked: list[np.ndarray] = []

    def none(self, entropy):
        asked.append(self.sensitivities)
        return np.zeros(len(self.sensitivities), dtype=np.int64)

    monkeypatch.setattr(LaplaceNoise, "draw", none)
    return asked


class TestCharges:
    def test_it_charges_before_it_looks(self) -> None:
        class Refusing(KeepingJournal):
            def charge(self, index, question):
                raise BudgetOverdrawn(asked_nano=question.epsilon_nano, left_nano=0)

        @dataclass
        class Watched:
            n_cells: int = 4

            def index(self, points):
                raise AssertionError("records were looked at")

        curator = curator_of(some_records(), journal=Refusing(), entropy=NoEntropy())
        with pytest.raises(BudgetOverdrawn):
            curator.counts(Watched(), 5)
        with pytest.raises(BudgetOverdrawn):
            curator.sums(Watched(), np.zeros((4, 2), np.int64), np.ones(4, np.int64), Shares(3, 2))

    def test_an_answer_is_written_down_before_it_is_given(self) -> None:
        journal = KeepingJournal()
        answer = curator_of(some_records(), journal=journal).counts(GridCells((2, 2)), 1000)
        assert journal.answers[0].tolist() == answer.tolist()

    def test_it_refuses_more_than_is_left_to_the_nano_and_draws_nothing(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), 1000, journal=journal)
        curator.count(400)
        with pytest.raises(BudgetOverdrawn) as refused:
            curator.counts(GridCells((2, 2)), 601)
        assert (refused.value.asked_nano, refused.value.left_nano) == (601, 600)
        assert len(journal.charges) == len(journal.answers) == 1
        curator.counts(GridCells((2, 2)), 600)
        assert (curator.spent_nano, curator.left_nano) == (1000, 0)
        with pytest.raises(BudgetOverdrawn):
            curator.count(1)

    @pytest.mark.parametrize("epsilon_nano", [0, -5])
    def test_nothing_is_free(self, epsilon_nano: int) -> None:
        with pytest.raises(ValueError, match="at least one"):
            curator_of(some_records()).count(epsilon_nano)

    def test_the_odometer_lists_every_question_and_its_cost(self) -> None:
        curator = curator_of(some_records())
        centres = np.full((3, 2), LATTICE // 2)
        curator.count(10)
        curator.sums(NearestCells(centres), centres, np.full(3, 9), Shares(20, 30, 40))
        curator.squares(NearestCells(centres), centres, 50)
        listed = [(question.what, question.epsilon_nano, question.n_values) for question in curator.odometer]
        assert listed == [("count", 10, 1), ("sums", 20, 6), ("counts", 30, 3), ("sizes", 40, 3), ("squares", 50, 3)]
        assert curator.spent_nano == 150


class TestRefused:
    """What could not be answered soundly is refused before it is charged."""

    def test_noise_of_a_scale_that_cannot_be_drawn(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), journal=journal, max_per_user=1_000_000)
        cells = GridCells((2, 1))
        with pytest.raises(InvalidSpec, match="too small for a question"):
            curator.squares(cells, np.full((2, 2), 7), 1000)
        assert curator.odometer == ()
        assert journal.charges == []
        assert len(curator.counts(cells, 1000)) == 2

    @pytest.mark.parametrize("place", [-1, LATTICE, -(1 << 63)])
    def test_centres_outside_the_box_weigh_more_than_the_sensitivity_says(self, place: int) -> None:
        curator = curator_of(some_records())
        centres = np.array([[5, 5], [5, place]])
        cells = GridCells((2, 1))
        with pytest.raises(ValueError, match="a centre is a lattice place"):
            curator.sums(cells, centres, np.array([9, 9]), Shares(5, 5))
        with pytest.raises(ValueError, match="a centre is a lattice place"):
            curator.squares(cells, centres, 5)
        assert curator.odometer == ()

    def test_more_centres_than_cells_or_fewer(self) -> None:
        curator = curator_of(some_records())
        with pytest.raises(ValueError, match="one centre for each cell"):
            curator.squares(GridCells((2, 1)), np.full((3, 2), 7), 5)
        assert curator.odometer == ()


class TestReplay:
    def asked(self, curator):
        centres = np.array([[1000, 2000], [500_000, 900_000]])
        told = curator.sums(NearestCells(centres), centres, np.array([40_000, 70_000]), Shares(300, 200, 100))
        rest = (curator.count(50), curator.counts(GridCells((3, 2)), 60))
        return [*(part.tolist() for part in told), rest[0], rest[1].tolist()]

    def test_answers_that_were_given_are_given_again_without_records_or_noise(self) -> None:
        journal = KeepingJournal()
        first = self.asked(curator_of(some_records(), journal=journal))
        again = KeepingJournal(journal.answers)
        nobody = np.zeros((0, 2), dtype=np.int32)
        assert self.asked(curator_of(nobody, journal=again, entropy=NoEntropy())) == first
        assert again.charges == journal.charges
        assert again.n_kept == 0

    def test_an_interrupted_run_goes_on_where_it_was(self) -> None:
        journal = KeepingJournal()
        first = self.asked(curator_of(some_records(), journal=journal))
        resumed = self.asked(curator_of(some_records(), journal=KeepingJournal(journal.answers[:2]), seed=9))
        assert resumed[:2] == first[:2]
        assert resumed[2:] != first[2:]


class TestSensitivity:
    """With one record more no answer changes by more than its noise is made for, over all its values together."""

    @given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 1 << 24))
    def test_sums_counts_and_squares(self, data: st.DataObject, d: int, k: int, radius: int) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 6), st.just(d)), elements=places))
        more = data.draw(arrays(np.int32, (1, d), elements=places))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        radii = data.draw(arrays(np.int64, k, elements=st.integers(1, radius)))
        with pytest.MonkeyPatch.context() as patch:
            sensitivities = []

            def none(self, entropy):
                sensitivities.append(self.sensitivities)
                return np.zeros(len(self.sensitivities), dtype=np.int64)

            patch.setattr(LaplaceNoise, "draw", none)
            answers = []
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
        for before, after, sensitivity in zip(*answers, sensitivities[:6], strict=True):
            changes = [Fraction(abs(int(b - a)), int(s)) for a, b, s in zip(before, after, sensitivity, strict=True)]
            assert sum(changes) <= 1

    def test_sums_reach_it_so_that_less_noise_would_be_found_out(self, noiseless: list[np.ndarray]) -> None:
        centre = np.full((1, 3), LATTICE // 2)
        far = np.zeros((1, 3), dtype=np.int32)
        told = curator_of(far).sums(NearestCells(centre), centre, np.array([3 * LATTICE // 2]), Shares(1, 1, 1))
        assert np.abs(told.residuals).sum() == noiseless[0][0] == 3 * LATTICE // 2
        assert told.sizes.tolist() == noiseless[2].tolist()

    @pytest.mark.parametrize("max_per_user", [1, 7])
    def test_noise_grows_with_the_records_a_user_may_have(
        self, max_per_user: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    def test_the_noise_of_an_answer_has_that_scale(self) -> None:
        told = curator_of(np.zeros((0, 1)), seed=5).counts(GridCells((20_000,)), NANO // 4)
        assert np.abs(told).mean() == pytest.approx(4, rel=0.05)
        assert curator_of(np.zeros((0, 1))).variance(1, NANO // 4) == pytest.approx(told.astype(float).var(), rel=0.1)

    def test_an_answer_is_clamped_after_the_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "discrete_laplace", lambda scale, n, entropy: np.full(n, -(2**62)))
        assert curator_of(some_records()).count(1) == -LARGEST


class TestKernels:
    @given(st.data(), st.integers(1, 5), st.integers(1, 4))
    def test_they_do_what_their_plain_twins_do(self, data: st.DataObject, d: int, k: int) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 8), st.just(d)), elements=places))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        radii = data.draw(arrays(np.int64, k, elements=st.integers(1, 1 << 22)))
        labels = data.draw(arrays(np.int64, len(points), elements=st.integers(-1, k - 1)))
        sums, sizes, squares = np.zeros((k, d), np.int64), np.zeros(k, np.int64), np.zeros(k, np.int64)
        add_residuals(points, labels, centres, radii, sums, sizes)
        add_squares(points, labels, centres, SQUARE_BITS, squares)
        expected = np.zeros((k, d), dtype=np.int64), np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
        for point, c in zip(points, labels, strict=True):
            if c >= 0:
                residual, size = naive.clipped_residual(centres[c], int(radii[c]), point)
                expected[0][c] += residual
                expected[1][c] += size
                expected[2][c] += naive.shifted_square(centres[c], SQUARE_BITS, point)
        assert sums.tolist() == expected[0].tolist()
        assert sizes.tolist() == expected[1].tolist()
        assert squares.tolist() == expected[2].tolist()
