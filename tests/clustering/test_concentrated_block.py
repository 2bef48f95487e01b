"""A concentrated block: charged as a whole, its rho counted to the last pico, its noise what a record can change."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering import noise
from clustering.central.budget import split
from clustering.central.cells import GridCells, NearestCells
from clustering.concentrated_block import widest
from clustering.curator import LARGEST, Shares
from clustering.errors import BlockOverdrawn, BudgetOverdrawn, DeltaOverdrawn
from clustering.kernels.residuals import add_round_residuals
from clustering.noise import GaussianNoise
from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import PICO, rho_of
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE
from tests import naive
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of

places = st.integers(0, LATTICE - 1)
DELTA = ATTO // 10**6
RHO = rho_of(NANO, DELTA)


def some_records(n=200, d=2, seed=3):
    return np.random.default_rng(seed).integers(0, LATTICE, (n, d)).astype(np.int32)


def block_of(points, *, epsilon_nano=NANO, **parts):
    return curator_of(points, epsilon_nano, delta_atto=DELTA, **parts).concentrated(epsilon_nano, DELTA)


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> list[GaussianNoise]:
    """Answers without noise, and the noise each of them would have had."""
    asked: list[GaussianNoise] = []

    def none(self, entropy):
        asked.append(self)
        return np.zeros(len(self.sensitivities), dtype=np.int64)

    monkeypatch.setattr(GaussianNoise, "draw", none)
    return asked


class TestCharges:
    def test_the_whole_block_is_charged_before_anything_is_asked_in_it(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), 2 * NANO, journal=journal, delta_atto=3 * DELTA, entropy=NoEntropy())
        block = curator.concentrated(NANO, DELTA)
        (charged,) = journal.charges
        assert (charged.what, charged.n_values, charged.rho_pico) == ("concentrated block", 0, 0)
        assert (charged.epsilon_nano, charged.delta_atto) == (NANO, DELTA)
        assert [len(answer) for answer in journal.answers] == [0]
        assert (curator.left_nano, curator.left_delta_atto) == (NANO, 2 * DELTA)
        assert block.left_pico == RHO > 0

    def test_it_looks_after_the_charge_alone(self) -> None:
        class Refusing(KeepingJournal):
            def charge(self, index, question):
                if question.rho_pico:
                    raise BudgetOverdrawn(asked_nano=0, left_nano=0)
                return super().charge(index, question)

        class Watched:
            n_cells = 4

            def index(self, points):
                raise AssertionError("records were looked at")

        block = block_of(some_records(), journal=Refusing(), entropy=NoEntropy())
        monitored = Watched()
        monitored.__class__.__dataclass_fields__ = {}  # a question is made of dataclasses
        with pytest.raises(BudgetOverdrawn):
            block.counts(monitored, 5)

    def test_questions_in_it_cost_nothing_further_and_take_rho(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        block = curator.concentrated(NANO, DELTA)
        centres = np.full((3, 2), LATTICE // 2)
        block.counts(GridCells((2, 2)), 10)
        block.sums(NearestCells(centres), centres, np.full(3, 9), Shares(20, 30, 40))
        listed = [(asked.what, asked.rho_pico, asked.n_values) for asked in curator.odometer[1:]]
        assert listed == [("counts", 10, 4), ("sums", 20, 6), ("counts", 30, 3), ("sizes", 40, 3)]
        assert block.left_pico == RHO - 100
        assert (curator.spent_nano, curator.spent_delta_atto) == (NANO, DELTA)

    def test_shares_of_it_add_up_and_one_pico_more_is_refused_undrawn(self) -> None:
        journal = KeepingJournal()
        block = block_of(some_records(), journal=journal)
        cells = GridCells((2, 2))
        *most, last = split(RHO, 17, 2, 1, 5)
        for part in most:
            block.counts(cells, part)
        with pytest.raises(BlockOverdrawn) as refused:
            block.counts(cells, last + 1)
        assert (refused.value.asked_pico, refused.value.left_pico) == (last + 1, last)
        assert len(journal.charges) == len(journal.answers) == 4
        block.counts(cells, last)
        assert block.left_pico == 0
        with pytest.raises(BlockOverdrawn):
            block.counts(cells, 1)

    def test_more_delta_or_epsilon_than_is_left_is_refused(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        with pytest.raises(DeltaOverdrawn) as refused:
            curator.concentrated(NANO, DELTA + 1)
        assert (refused.value.asked_atto, refused.value.left_atto) == (DELTA + 1, DELTA)
        with pytest.raises(BudgetOverdrawn):
            curator.concentrated(NANO + 1, DELTA)
        with pytest.raises(DeltaOverdrawn):
            curator_of(some_records()).concentrated(NANO, DELTA)
        assert curator.odometer == ()

    @pytest.mark.parametrize("rho_pico", [0, -5])
    def test_nothing_in_it_is_free(self, rho_pico: int) -> None:
        with pytest.raises(ValueError, match="at least one pico-rho"):
            block_of(some_records()).counts(GridCells((2, 2)), rho_pico)

    def test_epsilon_and_delta_that_pay_for_no_rho_are_not_charged(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        with pytest.raises(InvalidSpec, match="too small for concentrated answers"):
            curator.concentrated(1000, 1000)
        assert curator.odometer == ()

    def test_noise_that_cannot_be_drawn_is_refused_before_it_is_charged(self) -> None:
        curator = curator_of(some_records(), max_per_user=1_000_000, delta_atto=DELTA)
        block = curator.concentrated(NANO, DELTA)
        centres = np.full((2, 2), 7)
        with pytest.raises(InvalidSpec, match="too small for a question"):
            block.sums(NearestCells(centres), centres, np.full(2, LATTICE), Shares(1, 1))
        assert block.left_pico == RHO
        assert len(curator.odometer) == 1

    @pytest.mark.parametrize("place", [-1, LATTICE])
    def test_centres_outside_the_box_weigh_more_than_the_sensitivity_says(self, place: int) -> None:
        centres = np.array([[5, 5], [5, place]])
        with pytest.raises(ValueError, match="a centre is a lattice place"):
            block_of(some_records()).sums(GridCells((2, 1)), centres, np.array([9, 9]), Shares(5, 5))


class TestReplay:
    def asked(self, curator):
        centres = np.array([[1000, 2000], [500_000, 900_000]])
        cells = NearestCells(centres)
        before = curator.count(50)
        block = curator.concentrated(NANO // 2, DELTA)
        told = block.sums(cells, centres, np.array([40_000, 70_000]), Shares(300, 200, 100))
        more = block.counts(GridCells((3, 2)), block.left_pico)
        return [before, *(part.tolist() for part in told), more.tolist(), curator.count(60)]

    def test_answers_that_were_given_are_given_again_without_records_or_noise(self) -> None:
        journal = KeepingJournal()
        first = self.asked(curator_of(some_records(), journal=journal, delta_atto=DELTA))
        again = KeepingJournal(journal.answers)
        nobody = np.zeros((0, 2), dtype=np.int32)
        assert self.asked(curator_of(nobody, journal=again, entropy=NoEntropy(), delta_atto=DELTA)) == first
        assert again.charges == journal.charges
        assert again.n_kept == 0

    @pytest.mark.parametrize("n_kept", range(1, 7))
    def test_an_interrupted_run_goes_on_where_it_was(self, n_kept: int) -> None:
        journal = KeepingJournal()
        first = self.asked(curator_of(some_records(), journal=journal, delta_atto=DELTA))
        resumed_journal = KeepingJournal(journal.answers[:n_kept])
        resumed = self.asked(curator_of(some_records(), journal=resumed_journal, seed=9, delta_atto=DELTA))
        told = n_kept - (n_kept > 1)  # the block itself tells nothing
        assert resumed[:told] == first[:told]
        assert resumed[told:] != first[told:]
        assert resumed_journal.charges[:n_kept] == journal.charges[:n_kept]
        assert sum(asked.epsilon_nano for asked in resumed_journal.charges) == NANO // 2 + 110

    def test_a_question_of_another_rho_is_another_question(self) -> None:
        asked = []
        for rho_pico in (5, 6):
            curator = curator_of(some_records(), delta_atto=DELTA)
            curator.concentrated(NANO, DELTA).counts(GridCells((2, 2)), rho_pico)
            asked.append(curator.odometer[1])
        assert asked[0].digest != asked[1].digest


class TestSensitivity:
    """With one record more no answer changes by more than its noise is made for, over all its values together."""

    @given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 1 << 23), st.integers(1, 3))
    def test_sums_counts_and_sizes(self, data: st.DataObject, d: int, k: int, radius: int, max_per_user: int) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 6), st.just(d)), elements=places))
        more = data.draw(arrays(np.int32, (max_per_user, d), elements=places))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        radii = data.draw(arrays(np.int64, k, elements=st.integers(1, radius)))
        with pytest.MonkeyPatch.context() as patch:
            drawn: list[GaussianNoise] = []

            def none(self, entropy):
                drawn.append(self)
                return np.zeros(len(self.sensitivities), dtype=np.int64)

            patch.setattr(GaussianNoise, "draw", none)
            answers = []
            for records in (points, np.concatenate([points, more])):
                journal = KeepingJournal()
                block = block_of(records, journal=journal, max_per_user=max_per_user)
                block.sums(NearestCells(centres), centres, radii, Shares(PICO // 10**6, PICO // 10**6, PICO // 10**6))
                block.counts(GridCells((3,) * d), PICO // 10**6)
                answers.append(journal.answers[1:])
        assert len(answers[0]) == 4
        for before, after, noise_of in zip(*answers, drawn[:4], strict=True):
            rho = sum(
                Fraction(int(b - a)) ** 2 / (2 * noise_of.variance(int(s)))
                for a, b, s in zip(before, after, noise_of.sensitivities, strict=True)
            )
            assert rho <= Fraction(1, 10**6)

    @pytest.mark.parametrize("max_per_user", [1, 3])
    def test_sums_reach_it_so_that_less_noise_would_be_found_out(
        self, noiseless: list[GaussianNoise], max_per_user: int
    ) -> None:
        centre = np.full((1, 4), LATTICE // 2)
        far = np.zeros((max_per_user, 4), dtype=np.int32)  # sqrt(4) halves of the lattice from the middle
        block = block_of(far, max_per_user=max_per_user)
        told = block.sums(NearestCells(centre), centre, np.array([LATTICE]), Shares(5, 5, 5))
        changes = told.residuals.ravel(), told.counts, told.sizes
        for change, noise_of in zip(changes, noiseless, strict=True):
            variance = noise_of.variance(int(noise_of.sensitivities[0]))
            rho = sum(Fraction(int(value)) ** 2 for value in change) / (2 * variance)
            assert rho == Fraction(5, PICO)

    @pytest.mark.parametrize("d", range(1, 65, 9))
    def test_no_residual_in_the_box_is_longer_than_the_widest_radius(self, d: int) -> None:
        corner = naive.round_residual([0] * d, widest(d), [LATTICE - 1] * d)
        assert corner[0] == [LATTICE - 1] * d
        assert corner[1] <= widest(d)

    @pytest.mark.parametrize("max_per_user", [1, 7])
    def test_noise_grows_with_the_records_a_user_may_have(
        self, max_per_user: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variances: list[Fraction] = []

        def drawn(variance, n, entropy):
            variances.append(variance)
            return np.zeros(n, dtype=np.int64)

        monkeypatch.setattr(noise, "discrete_gaussian", drawn)
        block = block_of(some_records(), max_per_user=max_per_user)
        centres = np.zeros((2, 2), dtype=np.int64)
        block.sums(NearestCells(centres), centres, np.array([5, 9]), Shares(2000, 4000, 500))
        asked = [(5, 2000), (9, 2000), (1, 4000), (5, 500), (9, 500)]
        assert variances == [Fraction((s * max_per_user) ** 2 * PICO, 2 * rho) for s, rho in asked]
        assert block.deviation(2000) ** 2 == pytest.approx(float(variances[0]) / 25)

    def test_the_noise_of_an_answer_has_that_variance(self) -> None:
        block = block_of(np.zeros((0, 1)), seed=5, epsilon_nano=20 * NANO)
        told = block.counts(GridCells((20_000,)), PICO // 50)  # a variance of 25
        assert told.astype(float).var() == pytest.approx(25, rel=0.06)  # six deviations; 30 % of sigma would be 60 %
        assert block.deviation(PICO // 50) == 5

    def test_an_answer_is_clamped_after_the_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "discrete_gaussian", lambda variance, n, entropy: np.full(n, -(2**62)))
        assert block_of(some_records()).counts(GridCells((1, 1)), 1).tolist() == [-LARGEST]


class TestKernel:
    @given(st.data(), st.integers(1, 5), st.integers(1, 4))
    def test_it_does_what_its_plain_twin_does(self, data: st.DataObject, d: int, k: int) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 8), st.just(d)), elements=places))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        radii = data.draw(arrays(np.int64, k, elements=st.integers(1, 1 << 22)))
        labels = data.draw(arrays(np.int64, len(points), elements=st.integers(-1, k - 1)))
        sums, sizes = np.zeros((k, d), np.int64), np.zeros(k, np.int64)
        add_round_residuals(points, labels, centres, radii, sums, sizes)
        expected = np.zeros((k, d), dtype=np.int64), np.zeros(k, dtype=np.int64)
        for point, c in zip(points, labels, strict=True):
            if c >= 0:
                residual, size = naive.round_residual(centres[c], int(radii[c]), point)
                expected[0][c] += residual
                expected[1][c] += size
        assert sums.tolist() == expected[0].tolist()
        assert sizes.tolist() == expected[1].tolist()

    @given(st.data(), st.integers(1, 64), st.integers(1, 1 << 23))
    def test_no_clipped_residual_is_longer_than_the_radius_by_whole_numbers(
        self, data: st.DataObject, d: int, radius: int
    ) -> None:
        point = data.draw(arrays(np.int32, (1, d), elements=places))
        centre = data.draw(arrays(np.int64, (1, d), elements=places))
        sums, sizes = np.zeros((1, d), np.int64), np.zeros(1, np.int64)
        add_round_residuals(point, np.zeros(1, np.int64), centre, np.array([radius]), sums, sizes)
        assert sum(int(value) ** 2 for value in sums[0]) <= radius**2
        assert sum(int(value) ** 2 for value in sums[0]) <= int(sizes[0]) ** 2 <= radius**2

    def test_it_keeps_what_fits_to_the_unit(self) -> None:
        """Exact squares, where a rounded root could fall on either side."""
        for norm in (3 * 2**19, 5 * (2**17 - 1), 5):
            point = np.array([[3 * norm // 5, 4 * norm // 5]], dtype=np.int32)
            exact = int(point[0, 0]) ** 2 + int(point[0, 1]) ** 2
            root = round(exact**0.5)
            for radius in (root - 1, root, root + 1):
                sums, sizes = np.zeros((1, 2), np.int64), np.zeros(1, np.int64)
                zero = np.zeros((1, 2), np.int64)
                add_round_residuals(point, np.zeros(1, np.int64), zero, np.array([radius]), sums, sizes)
                assert (sums[0].tolist(), sizes[0]) == naive.round_residual([0, 0], radius, point[0])
