"""A job over noisy vectors: interrupted, resumed, and equal to the plan over what was kept, bit for bit."""

import json

import pytest

from clustering import tally as tallies
from clustering.plan import Collected, Sample, drive
from clustering.plans.noisy_fcm import noisy_fcm
from clustering.registry import start
from models.round import Round
from sfumato.accounting import NANO
from sfumato.specs import Feature, NoisyFcm, to_wire
from tests.workers.collection import Collection, packed_reports
from tests.workers.driving import LEASE, must_claim, step
from workers.fold import fold
from workers.runner import Outcome, run

FEATURES = (Feature("x", 0.0, 10.0), Feature("y", -1.0, 1.0))
PARAMS = NoisyFcm(8.0, 2)
N_REPORTS = 600


def answered(database) -> tuple[Collection, str, Round]:
    """A job whose one round is full."""
    collection = Collection.create(database, features=FEATURES)
    job_id = collection.submit(algorithm=to_wire(PARAMS), target_reports=N_REPORTS, epsilon_nano=8 * NANO)
    assert step(collection, start=start) is Outcome.COLLECTING
    asked = collection.open_round()
    assert asked is not None
    collection.fill(asked)
    return collection, job_id, asked


class TestAJob:
    def test_comes_to_the_model_of_the_plan_over_the_sample_that_was_kept(self, collection: Collection) -> None:
        collection, job_id, asked = answered(collection.database)
        assert step(collection, start=start) is Outcome.SUCCEEDED
        packed = packed_reports(asked.spec, N_REPORTS, asked.index)
        sample = fold(asked.spec, lambda: [packed], n_expected=N_REPORTS).tally
        model = drive(noisy_fcm(PARAMS, FEATURES, N_REPORTS), lambda spec: Collected(spec, sample))
        told = collection.document(job_id)
        assert told["model"] == json.loads(json.dumps(model.to_wire()))
        assert told["epsilon_nano"] == 8 * NANO
        assert told["rounds"][0]["n_reports"] == N_REPORTS
        assert collection.posts() == [8 * NANO]

    def test_resumed_after_its_worker_vanished_comes_to_the_same(self, collection: Collection) -> None:
        models = []
        for vanishes in (False, True):
            collection, job_id, _ = answered(collection.database)
            if vanishes:
                must_claim(collection.database)  # and no more is heard of it
            held = must_claim(collection.database, later=2 * LEASE if vanishes else 0)
            assert run(collection.database, held, start=start) is Outcome.SUCCEEDED
            models.append(collection.document(job_id)["model"])
        assert models[0] == models[1]

    def test_answered_by_more_than_are_kept_takes_the_first_and_so_does_a_later_job(
        self, collection: Collection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        collection, job_id, asked = answered(collection.database)
        n_kept = N_REPORTS - 100  # as if the last request had brought too many
        monkeypatch.setattr(tallies, "MAX_SAMPLE_VALUES", n_kept * len(FEATURES))
        assert step(collection, start=start) is Outcome.SUCCEEDED
        packed = packed_reports(asked.spec, N_REPORTS, asked.index)
        first = fold(asked.spec, lambda: [packed[: len(packed) // N_REPORTS * n_kept]], n_expected=n_kept).tally
        model = drive(noisy_fcm(PARAMS, FEATURES, n_kept), lambda spec: Collected(spec, first))
        told = collection.document(job_id)
        assert told["model"] == json.loads(json.dumps(model.to_wire()))
        assert told["rounds"][0]["n_reports"] == n_kept
        again = collection.submit(algorithm=to_wire(PARAMS), round_ids=[asked.id], epsilon_nano=8 * NANO)
        assert step(collection, start=start) is Outcome.SUCCEEDED
        assert collection.document(again)["model"] == told["model"]

    def test_a_job_that_would_keep_too_much_fails_before_it_spends(self, collection: Collection) -> None:
        collection = Collection.create(collection.database, features=FEATURES)
        job_id = collection.submit(algorithm=to_wire(PARAMS), target_reports=10**9, epsilon_nano=8 * NANO)
        assert step(collection, start=start) is Outcome.FAILED
        assert "it takes 8388608 reports" in (collection.job(job_id).error_detail or "")
        assert collection.posts() == []
        assert collection.balance().reserved_nano == 0


class TestTheFold:
    def test_repeats_count_once_and_damaged_reports_not_at_all(self) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        packed = packed_reports(spec, 50, 3)
        width = len(packed) // 50
        damaged = bytes(20) + b"\xff" * (width - 20)
        folded = fold(spec, lambda: [packed, packed[: 7 * width], damaged, packed[:5]], n_expected=60)
        assert isinstance(folded.tally, Sample)
        assert (folded.tally.n_reports, folded.n_repeated, folded.n_malformed) == (50, 7, 2)

    def test_reads_a_log_in_parts_and_in_any_order_to_the_same_bytes(self) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        rows = [packed_reports(spec, 40, seed) for seed in range(5)]
        whole = fold(spec, lambda: rows, n_expected=200).tally
        parts = fold(spec, lambda: rows[::-1], n_expected=200, ids_at_once=64).tally
        assert whole.to_bytes() == parts.to_bytes()

    @pytest.mark.parametrize("ids_at_once", [1 << 24, 64])
    def test_keeps_no_more_than_a_sample_holds_and_says_how_many_it_left_out(
        self, ids_at_once: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = next(noisy_fcm(PARAMS, FEATURES, N_REPORTS))
        rows = [packed_reports(spec, 40, seed) for seed in (1, 2, 2, 3, 4, 5)]
        monkeypatch.setattr(tallies, "MAX_SAMPLE_VALUES", 2 * 150)
        folded = fold(spec, lambda: rows, n_expected=240, ids_at_once=ids_at_once)
        assert (folded.tally.n_reports, folded.n_repeated, folded.n_left_out) == (150, 40, 50)
