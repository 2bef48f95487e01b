"""Jobs over noisy vectors: the model equals the plan over the stored sample, bit for bit."""

import json

import pytest

from clustering.centroids.noisy_fcm import noisy_fcm
from clustering.registry import start
from clustering.rounds import counting
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Sample
from models.tables.rounds import Round
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, NoisyFcm, to_wire
from tests.workers.collection import Collection, packed_reports
from tests.workers.driving import LEASE, must_claim, step
from workers.aggregation.aggregate import aggregate
from workers.job_runner import ClaimOutcome, run

FEATURES = (Feature("x", 0.0, 10.0), Feature("y", -1.0, 1.0))
PARAMS = NoisyFcm(8.0, 2)
ALGORITHM = to_wire(PARAMS)
N_REPORTS = 600


@pytest.fixture
def collection(database) -> Collection:
    return Collection.create(database, features=FEATURES)


def collect(collection: Collection) -> tuple[str, Round]:
    """Submit a job and fill its only round."""
    job_id = collection.submit(algorithm=ALGORITHM, target_reports=N_REPORTS, epsilon_nano=8 * NANO)
    assert step(collection, start=start) is ClaimOutcome.COLLECTING
    opened = collection.get_open_round()
    collection.fill(opened)
    return job_id, opened


class TestJob:
    @pytest.mark.parametrize("n_kept", [N_REPORTS, N_REPORTS - 100])
    def test_has_the_model_of_the_plan_over_the_first_reports(
        self, collection: Collection, monkeypatch: pytest.MonkeyPatch, n_kept: int
    ) -> None:
        monkeypatch.setattr(counting, "MAX_SAMPLE_VALUES", n_kept * (len(FEATURES) + 1))  # with the mark
        job_id, opened = collect(collection)
        assert step(collection, start=start) is ClaimOutcome.SUCCEEDED
        packed = packed_reports(opened.spec, N_REPORTS, opened.index)
        first = aggregate(opened.spec, lambda: [packed[: len(packed) // N_REPORTS * n_kept]], n_expected=n_kept).tally
        plan = checking_law(counting_outside(noisy_fcm(PARAMS, FEATURES, n_kept), opens_counting=True))
        model = drive(plan, lambda spec: Collected(spec, first))
        document = collection.document(job_id)
        assert document["model"] == json.loads(json.dumps(model.to_wire()))
        assert (document["epsilon_nano"], document["rounds"][0]["n_reports"]) == (8 * NANO, n_kept)
        assert [charge.epsilon_nano for charge in collection.charges()] == [8 * NANO]
        later = collection.submit(algorithm=ALGORITHM, round_ids=[opened.id], epsilon_nano=8 * NANO)
        assert step(collection, start=start) is ClaimOutcome.SUCCEEDED
        assert collection.document(later)["model"] == document["model"]

    def test_has_the_same_model_after_its_worker_was_lost(self, collection: Collection) -> None:
        models = []
        for is_lost in (False, True):
            job_id, _ = collect(collection)
            if is_lost:
                must_claim(collection.database)
            claimed = must_claim(collection.database, later=2 * LEASE if is_lost else 0)
            assert run(collection.database, claimed, start=start) is ClaimOutcome.SUCCEEDED
            models.append(collection.document(job_id)["model"])
        assert models[0] == models[1]

    def test_for_too_many_reports_fails_before_a_charge(self, collection: Collection) -> None:
        job_id = collection.submit(algorithm=ALGORITHM, target_reports=10**9, epsilon_nano=8 * NANO)
        assert step(collection, start=start) is ClaimOutcome.FAILED
        assert "it accepts at most 5592405 reports" in (collection.job(job_id).error_detail or "")
        assert collection.charges() == []
        assert collection.balance().reserved_nano == 0


class TestAggregation:
    def test_counts_repeated_reports_once_and_drops_damaged_ones(self) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        packed = packed_reports(spec, 50, 3)
        width = len(packed) // 50
        damaged = bytes(20) + b"\xff" * (width - 20)
        aggregation = aggregate(spec, lambda: [packed, packed[: 7 * width], damaged, packed[:5]], n_expected=60)
        assert isinstance(aggregation.tally, Sample)
        assert (aggregation.tally.n_reports, aggregation.n_repeated, aggregation.n_malformed) == (50, 7, 2)

    def test_does_not_depend_on_the_order_or_on_the_memory(self) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        rows = [packed_reports(spec, 40, seed) for seed in range(5)]
        expected = aggregate(spec, lambda: rows, n_expected=200).tally
        other = aggregate(spec, lambda: rows[::-1], n_expected=200, max_ids_in_memory=64).tally
        assert expected.to_bytes() == other.to_bytes()

    @pytest.mark.parametrize("max_ids_in_memory", [1 << 24, 64])
    def test_keeps_at_most_a_full_sample_and_counts_the_rest(
        self, max_ids_in_memory: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        rows = [packed_reports(spec, 40, seed) for seed in (1, 2, 2, 3, 4, 5)]
        monkeypatch.setattr(counting, "MAX_SAMPLE_VALUES", 2 * 150)
        aggregation = aggregate(spec, lambda: rows, n_expected=240, max_ids_in_memory=max_ids_in_memory)
        assert (aggregation.tally.n_reports, aggregation.n_repeated, aggregation.n_left_out) == (150, 40, 50)
