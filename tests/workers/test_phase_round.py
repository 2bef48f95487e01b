"""A job with phase rounds: devices report, a worker aggregates the log, and the plan continues from the tallies."""

import base64
from dataclasses import replace

import numpy as np

from clustering.phases.phase_sketch import phase_sketch
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from models.database.types import canonical_json
from sfumato.device.outcomes import Outcome as DeviceOutcome
from sfumato.records.encodings import symbol
from sfumato.specs import Feature, PhaseSketch, RoundSpec
from tests import naive
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round
from tests.workers.collection import Collection, packed_reports
from tests.workers.driving import must_claim
from workers.job_runner import ClaimOutcome, run

ALGORITHM = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 2, "slots": 48, "seed": 3}
PARAMS = PhaseSketch(1.0, clusters=2, slots=48, seed=3)


def naive_tally(spec: RoundSpec, packed: bytes) -> Tally:
    """Count packed reports one at a time."""
    rows = np.frombuffer(packed, np.uint8).reshape(-1, 20 + spec.mechanism.value_bytes)
    slots = [int.from_bytes(bytes(row[16:20]), "little") for row in rows]
    counts, reports = naive.count(spec.mechanism, spec.encoding.n_slots, slots, rows[:, 20:])
    return Tally(np.array(counts), np.array(reports))


class TestRefinedJob:
    """The collected reports determine each next round, as in the plan alone."""

    ALGORITHM = ALGORITHM | {"refine": "lloyd"}
    PARAMS = replace(PARAMS, refine="lloyd")

    def run_job(self, collection: Collection, seed: int) -> tuple[str, list[RoundSpec]]:
        """Run a job to its end. Return its id and the specs of its rounds."""
        job_id = collection.submit(algorithm=self.ALGORITHM, target_reports=400)
        while run(collection.database, must_claim(collection.database)) is ClaimOutcome.COLLECTING:
            collection.fill(collection.get_open_round(), seed=seed)
        return job_id, [each.spec for each in collection.rounds_of(job_id)]

    def test_has_the_model_of_the_plan_over_the_same_reports(self, collection: Collection) -> None:
        job_id, specs = self.run_job(collection, seed=5)
        own = iter(collection.rounds_of(job_id))
        planned: list[RoundSpec] = []

        def collect(spec: RoundSpec) -> Collected:
            planned.append(spec)
            stored = next(own)
            packed = packed_reports(stored.spec, stored.target_reports, 5 + stored.index)
            return Collected(stored.spec, naive_tally(stored.spec, packed))

        plan = phase_sketch(self.PARAMS, (Feature("x", 0.0, 10.0),), 400)
        model = drive(checking_law(counting_outside(plan, opens_counting=True)), collect)
        document = collection.document(job_id)
        assert planned == specs
        assert canonical_json(document["model"]) == canonical_json(model.to_wire())
        assert document["model"]["type"] == "centroids"
        assert np.shape(document["model"]["centroid_errors"]) == (2, 1)
        assert [spec.encoding.type for spec in specs] == ["phase", "nearest_centroid", "nearest_centroid"]
        assert specs[1].encoding != specs[2].encoding

    def test_opens_other_rounds_after_other_reports(self, collection: Collection) -> None:
        (_, first), (_, second) = self.run_job(collection, 5), self.run_job(collection, 6)
        assert first[0] == second[0]
        assert first[1].encoding != second[1].encoding


class TestDevice:
    def test_sends_its_phase_through_the_window(self) -> None:
        spec = next(phase_sketch(PARAMS, FEATURES, 1000))
        assert spec.mechanism.type == "window"
        record, slot = [3.5, 7.5], 30
        own = symbol(spec.encoding, [3.5 / 8, 7.5 / 8], slot)
        run_of_slots, run_of_window = 2**64 // 48, 2**64 // spec.mechanism.window_size
        middle = spec.mechanism.window_size // 2  # offset zero
        words = [
            0,
            slot * run_of_slots,
            0,
            middle * run_of_window,
            1,
            2,
        ]  # participation; slot; inside; offset; report id
        service = ScriptedService(open_round(spec=spec))
        receipt = service.device(entropy=ReplayEntropy(words)).report(record)
        assert receipt.outcome is DeviceOutcome.SENT
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == slot
        assert base64.b64decode(report["value"]) == bytes([own])
