"""Test the concentrated block: its charge, rho, sensitivities and noise."""

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central import noise
from clustering.central.cells import GridCells, NearestCells, WholeBox
from clustering.central.curator import LARGEST
from clustering.central.gaussian_block import Rho
from clustering.central.noise import GaussianNoise
from clustering.central.projection import make_projection
from clustering.central.queries import PRODUCT_PARTS, RADIUS_PARTS, split
from clustering.errors import BlockOverdrawn, BudgetOverdrawn, DeltaOverdrawn
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO, rho_of
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
DELTA = ATTO // 10**6
RHO = rho_of(NANO, DELTA)


def block_of(points, *, epsilon_nano=NANO, **parts):
    return curator_of(points, epsilon_nano, delta_atto=DELTA, **parts).open_block(epsilon_nano, DELTA)


class TestCharges:
    def test_block_is_charged_before_its_queries(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(some_records(), 2 * NANO, journal=journal, delta_atto=3 * DELTA, entropy=NoEntropy())
        block = curator.open_block(NANO, DELTA)
        (charged,) = journal.charges
        assert (charged.description, charged.n_values, charged.rho_pico) == ("concentrated block", 0, 0)
        assert (charged.epsilon_nano, charged.delta_atto) == (NANO, DELTA)
        assert [len(answer) for answer in journal.answers] == [0]
        assert (curator.left_nano, curator.left_delta_atto) == (NANO, 2 * DELTA)
        assert block.left_pico == RHO > 0

    def test_reads_records_after_the_charge(self) -> None:
        block = block_of(some_records(), journal=RefusingJournal(), entropy=NoEntropy())
        with pytest.raises(BudgetOverdrawn):
            block.counts(UnreadableCells(), 5)

    def test_queries_in_a_block_take_rho_only(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        block = curator.open_block(NANO, DELTA)
        centres = np.full((3, 2), LATTICE // 2)
        block.counts(GridCells((2, 2)), 10)
        block.moments(centres, np.full(3, 9.0), Rho(20, 30, 40))
        block.moments(centres, np.full(3, 9.0), Rho(seconds=50), "products")
        listed = [(collected.description, collected.rho_pico, collected.n_values) for collected in curator.odometer[1:]]
        moments = [("sums", 20, 6), ("counts", 30, 3), ("squares", 40, 3), ("products", 50, 9)]
        assert listed == [("counts", 10, 4), *moments]
        assert block.left_pico == RHO - 150
        assert (curator.spent_nano, curator.spent_delta_atto) == (NANO, DELTA)

    def test_rejects_overspending_by_one_pico_without_drawing(self) -> None:
        journal = KeepingJournal()
        block = block_of(some_records(), journal=journal)
        cells = GridCells((2, 2))
        *most, last = split(RHO, 17, 2, 1, 5)
        for part in most:
            block.counts(cells, part)
        with pytest.raises(BlockOverdrawn) as refused:
            block.counts(cells, last + 1)
        assert (refused.value.cost_pico, refused.value.left_pico) == (last + 1, last)
        assert len(journal.charges) == len(journal.answers) == 4
        block.counts(cells, last)
        assert block.left_pico == 0
        with pytest.raises(BlockOverdrawn):
            block.counts(cells, 1)

    def test_rejects_more_epsilon_or_delta_than_left(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        with pytest.raises(DeltaOverdrawn) as refused:
            curator.open_block(NANO, DELTA + 1)
        assert (refused.value.cost_atto, refused.value.left_atto) == (DELTA + 1, DELTA)
        with pytest.raises(BudgetOverdrawn):
            curator.open_block(NANO + 1, DELTA)
        with pytest.raises(DeltaOverdrawn):
            curator_of(some_records()).open_block(NANO, DELTA)
        assert curator.odometer == ()

    @pytest.mark.parametrize("rho_pico", [0, -5])
    def test_rejects_zero_rho(self, rho_pico: int) -> None:
        with pytest.raises(ValueError, match="at least one pico-rho"):
            block_of(some_records()).counts(GridCells((2, 2)), rho_pico)

    def test_budget_without_rho_is_not_charged(self) -> None:
        curator = curator_of(some_records(), delta_atto=DELTA)
        with pytest.raises(InvalidSpec, match="too small for concentrated answers"):
            curator.open_block(1000, 1000)
        assert curator.odometer == ()

    def test_rejects_excessive_noise_before_the_charge(self) -> None:
        curator = curator_of(some_records(), max_per_user=1_000_000, delta_atto=DELTA)
        block = curator.open_block(NANO, DELTA)
        centres = np.full((2, 2), 7)
        with pytest.raises(InvalidSpec, match="too small for a query"):
            block.moments(centres, np.ones(2), Rho(sums=1))
        assert block.left_pico == RHO
        assert len(curator.odometer) == 1

    @pytest.mark.parametrize("place", [-1, LATTICE])
    def test_rejects_centres_outside_the_box(self, place: int) -> None:
        centres = np.array([[5, 5], [5, place]])
        with pytest.raises(ValueError, match="centres must be lattice places"):
            block_of(some_records()).moments(centres, np.ones(2), Rho(5, 5))


class TestReplay:
    def collected(self, curator):
        centres = np.array([[1000, 2000], [500_000, 900_000]])
        before = curator.count(50)
        block = curator.open_block(NANO // 2, DELTA)
        answer = block.moments(centres, np.array([0.04, 0.07]), Rho(300, 200, 100))
        projected = block.project(make_projection(centres[0], np.array([[0.6], [0.8]])))
        more = projected.counts(NearestCells(np.array([[0], [50_000]])), block.left_pico)
        return [before, *(part.tolist() for part in answer), more.tolist(), curator.count(60)]

    def test_stored_answers_are_returned_without_records_or_noise(self) -> None:
        journal = KeepingJournal()
        first = self.collected(curator_of(some_records(), journal=journal, delta_atto=DELTA))
        again = KeepingJournal(journal.answers)
        no_records = np.zeros((0, 2), dtype=np.int32)
        assert self.collected(curator_of(no_records, journal=again, entropy=NoEntropy(), delta_atto=DELTA)) == first
        assert again.charges == journal.charges
        assert again.n_kept == 0

    @pytest.mark.parametrize("n_kept", range(1, 7))
    def test_interrupted_run_continues(self, n_kept: int) -> None:
        journal = KeepingJournal()
        first = self.collected(curator_of(some_records(), journal=journal, delta_atto=DELTA))
        resumed_journal = KeepingJournal(journal.answers[:n_kept])
        resumed = self.collected(curator_of(some_records(), journal=resumed_journal, seed=9, delta_atto=DELTA))
        answer = n_kept - (n_kept > 1)  # the block itself has no answer
        assert resumed[:answer] == first[:answer]
        assert resumed[answer:] != first[answer:]
        assert resumed_journal.charges[:n_kept] == journal.charges[:n_kept]
        assert sum(collected.epsilon_nano for collected in resumed_journal.charges) == NANO // 2 + 110

    def test_query_with_another_rho_has_another_digest(self) -> None:
        collected = []
        for rho_pico in (5, 6):
            curator = curator_of(some_records(), delta_atto=DELTA)
            curator.open_block(NANO, DELTA).counts(GridCells((2, 2)), rho_pico)
            collected.append(curator.odometer[1])
        assert collected[0].digest != collected[1].digest


class TestSensitivity:
    """One more record changes no answer by more than its declared sensitivity, in total."""

    @settings(max_examples=25)
    @given(st.data(), st.integers(1, 4) | st.just(17), st.integers(1, 3), st.integers(1, 2), st.booleans())
    def test_moments_and_counts(
        self, data: st.DataObject, d: int, k: int, max_per_user: int, is_projected: bool
    ) -> None:
        points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 4), st.just(d)), elements=places))
        more = data.draw(arrays(np.int32, (max_per_user, d), elements=places))
        directions = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0][:, :2]
        projection = make_projection(more[0].astype(np.int64), directions)
        centres = data.draw(arrays(np.int64, (k, min(d, 2) if is_projected else d), elements=places))
        radii = data.draw(arrays(np.float64, k, elements=st.floats(1e-7, 5.0)))
        with pytest.MonkeyPatch.context() as patch:
            drawn, answers = remove_noise(patch, GaussianNoise), []
            for records in (points, np.concatenate([points, more])):
                journal = KeepingJournal()
                block = block_of(records, journal=journal, max_per_user=max_per_user)
                block = block.project(projection) if is_projected else block
                rho = Rho(PICO // 10**6, PICO // 10**6, PICO // 10**6)
                block.moments(centres, radii, rho, "products")
                block.moments(centres, radii, Rho(seconds=PICO // 10**6), "squares")
                answers.append(journal.answers[1:])
        assert len(answers[0]) == 4
        for before, after, noise_of in zip(*answers, drawn[:4], strict=True):
            rho_lost = sum(
                Fraction(int(b - a)) ** 2 / (2 * (noise_of.variance(int(s)) - 3))
                for a, b, s in zip(before, after, noise_of.sensitivities, strict=True)
            )
            assert rho_lost <= Fraction(1, 10**6)

    @pytest.mark.parametrize("second", ["squares", "products"])
    @pytest.mark.parametrize("max_per_user", [1, 3])
    def test_moments_attain_the_sensitivity(
        self, max_per_user: int, second: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        noiseless, journal = remove_noise(monkeypatch, GaussianNoise), KeepingJournal()
        centre = np.full((1, 4), LATTICE // 2)
        far = np.zeros((max_per_user, 4), dtype=np.int32)  # sqrt(4) halves of the lattice from the middle
        block = block_of(far, max_per_user=max_per_user, journal=journal)
        block.moments(centre, np.array([0.9]), Rho(5, 5, 5), second)
        for change, noise_of in zip(journal.answers[1:], noiseless, strict=True):
            rho = sum(
                Fraction(int(value)) ** 2 / (2 * (noise_of.variance(int(s)) - 3))
                for value, s in zip(change, noise_of.sensitivities, strict=True)
            )
            assert 0.999 * Fraction(5, PICO) < rho <= Fraction(5, PICO)

    def test_moments_are_those_of_the_clipped_residuals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remove_noise(monkeypatch, GaussianNoise)
        points = np.random.default_rng(1).integers(0, LATTICE, (300, 20)).astype(np.int32)
        centres = np.array([np.full(20, 300_000), np.full(20, 700_000)])
        radii, labels = np.array([1.0, 1.3]), NearestCells(centres).index(points)
        residuals = (points - centres[labels]) / LATTICE
        norms = np.linalg.norm(residuals, axis=1)
        residuals *= np.minimum(1, radii[labels] / norms)[:, None]
        assert 0.1 < (norms > radii[labels]).mean() < 0.9
        groups = [residuals[labels == c] for c in range(2)]
        answers = [block_of(points).moments(centres, radii, Rho(5, 5, 5), second) for second in ("squares", "products")]
        assert answers[0].counts.tolist() == [len(group) for group in groups]
        assert answers[0].sums == pytest.approx(np.array([group.sum(axis=0) for group in groups]), abs=1e-3)
        assert answers[0].seconds == pytest.approx([(group**2).sum() for group in groups], rel=1e-4)
        assert answers[1].seconds == pytest.approx(np.array([group.T @ group for group in groups]), abs=0.05)
        whole = block_of(points).moments(centres[:1], radii[:1], Rho(seconds=5), "products", WholeBox())
        assert whole.seconds.shape == (1, 20, 20)
        clipped = (points - centres[0]) / LATTICE
        clipped *= np.minimum(1, 1 / np.linalg.norm(clipped, axis=1))[:, None]
        assert whole.seconds[0] == pytest.approx(clipped.T @ clipped, abs=0.05)

    @pytest.mark.parametrize("max_per_user", [1, 7])
    def test_noise_grows_with_records_per_user(self, max_per_user: int, monkeypatch: pytest.MonkeyPatch) -> None:
        variances: list[Fraction] = []

        def drawn(variance, n, entropy):
            variances.append(variance)
            return np.zeros(n, dtype=np.int64)

        monkeypatch.setattr(noise, "discrete_gaussian", drawn)
        block = block_of(some_records(), max_per_user=max_per_user)
        centres = np.zeros((2, 2), dtype=np.int64)
        block.moments(centres, np.array([0.5, 0.9]), Rho(2000, 4000, 500), "products")
        aside = isqrt(PRODUCT_PARTS**4 // 2) + 1
        collected = [(RADIUS_PARTS, 2000), (1, 4000), (aside, 500), (PRODUCT_PARTS**2, 500)]
        assert variances == [Fraction((s * max_per_user) ** 2 * PICO, 2 * rho) + 3 for s, rho in collected]
        assert block.moment_deviation(2000) ** 2 == pytest.approx(float(variances[0]) / RADIUS_PARTS**2, rel=1e-9)
        assert block.deviation(4000) ** 2 == pytest.approx(float(variances[1]))

    def test_noise_has_the_declared_variance(self) -> None:
        block = block_of(np.zeros((0, 1)), seed=5, epsilon_nano=20 * NANO)
        answer = block.counts(GridCells((20_000,)), PICO // 50)  # a variance of 25 + 3
        assert answer.astype(float).var() == pytest.approx(28, rel=0.06)  # six deviations; 30 % of sigma would be 60 %
        assert block.deviation(PICO // 50) == pytest.approx(28**0.5)

    def test_answer_is_clamped_after_the_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "discrete_gaussian", lambda variance, n, entropy: np.full(n, -(2**62)))
        assert block_of(some_records()).counts(GridCells((1, 1)), 1).tolist() == [-LARGEST]
