"""A round of phases all the way: devices answer it, the log is folded, and the plan goes on from what is stored."""

import base64
from dataclasses import replace

import numpy as np

from clustering.plan import Collected, Tally, drive
from clustering.plans.phase_sketch import fit, phase_sketch
from models.db import canonical_json
from sfumato import mechanisms
from sfumato.device import Outcome as DeviceOutcome
from sfumato.encodings import symbol
from sfumato.specs import Feature, PhaseSketch, RoundSpec
from tests import naive
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round
from tests.workers.collection import Collection, packed_reports
from tests.workers.driving import must_claim
from workers.runner import Outcome, run

ALGORITHM = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 2, "slots": 48, "seed": 3}
PARAMS = PhaseSketch(1.0, clusters=2, slots=48, seed=3)


def counted(spec, packed: bytes) -> Tally:
    """The tally of packed reports, one at a time."""
    rows = np.frombuffer(packed, np.uint8).reshape(-1, 20 + mechanisms.value_bytes(spec.mechanism))
    slots = [int.from_bytes(bytes(row[16:20]), "little") for row in rows]
    counts, reports = naive.count(spec.mechanism, spec.encoding.n_slots, slots, rows[:, 20:])
    return Tally(np.array(counts), np.array(reports))


class TestAJob:
    def test_ends_with_the_model_the_plan_makes_of_the_folded_reports(self, collection: Collection) -> None:
        job_id = collection.submit(algorithm=ALGORITHM, target_reports=400)
        assert run(collection.database, must_claim(collection.database)) is Outcome.COLLECTING
        asked = collection.open_round()
        assert asked is not None
        collection.fill(asked, seed=5)
        assert run(collection.database, must_claim(collection.database)) is Outcome.SUCCEEDED
        (own,) = collection.rounds_of(job_id)
        features = (Feature("x", 0.0, 10.0),)
        assert own.spec == next(phase_sketch(PARAMS, features, 400))
        expected = fit(PARAMS, Collected(own.spec, counted(own.spec, packed_reports(own.spec, 400, 5))))
        model = collection.document(job_id)["model"]
        assert canonical_json(model) == canonical_json(expected.to_wire())
        assert model["type"] == "centroids"
        assert model["diagnostics"]["n_reports"] == 400
        assert np.shape(model["centroid_errors"]) == (2, 1)


class TestRoundsThatFollow:
    """Each round is opened by what those before it brought, as the plan alone would have asked."""

    ALGORITHM = ALGORITHM | {"refine": "lloyd"}
    PARAMS = replace(PARAMS, refine="lloyd")

    def run_all(self, collection: Collection, job_id: str, seed: int) -> list[RoundSpec]:
        """What the rounds asked, all filled and gone on from."""
        outcome = run(collection.database, must_claim(collection.database))
        while outcome is Outcome.COLLECTING:
            asked = collection.open_round()
            assert asked is not None
            collection.fill(asked, seed=seed)
            outcome = run(collection.database, must_claim(collection.database))
        assert outcome is Outcome.SUCCEEDED
        return [each.spec for each in collection.rounds_of(job_id)]

    def test_ask_about_the_centroids_found_so_far(self, collection: Collection) -> None:
        job_id = collection.submit(algorithm=self.ALGORITHM, target_reports=400)
        specs = self.run_all(collection, job_id, seed=5)
        features = (Feature("x", 0.0, 10.0),)
        told = iter(
            Collected(each.spec, counted(each.spec, packed_reports(each.spec, each.target_reports, 5 + each.index)))
            for each in collection.rounds_of(job_id)
        )
        wanted: list[RoundSpec] = []

        def collect(spec: RoundSpec) -> Collected:
            wanted.append(spec)
            return next(told)

        model = drive(phase_sketch(self.PARAMS, features, 400), collect)
        assert wanted == specs
        assert canonical_json(collection.document(job_id)["model"]) == canonical_json(model.to_wire())
        assert [spec.encoding.type for spec in specs] == ["phase", "nearest_centroid", "nearest_centroid"]
        assert specs[1].encoding != specs[2].encoding

    def test_ask_others_about_other_centroids(self, collection: Collection) -> None:
        asked = [
            self.run_all(collection, collection.submit(algorithm=self.ALGORITHM, target_reports=400), seed)
            for seed in (5, 6)
        ]
        assert asked[0][0] == asked[1][0]
        assert asked[0][1].encoding != asked[1][1].encoding


class TestADevice:
    def test_sends_its_own_phase_through_the_window(self) -> None:
        spec = next(phase_sketch(PARAMS, FEATURES, 1000))
        assert spec.mechanism.type == "window"
        record, slot = [3.5, 7.5], 30
        own = symbol(spec.encoding, [3.5 / 8, 7.5 / 8], slot)
        run_of_slots, run_of_window = 2**64 // 48, 2**64 // spec.mechanism.window_size
        middle = spec.mechanism.window_size // 2  # the offset that is no offset
        words = [0, slot * run_of_slots, 0, middle * run_of_window, 1, 2]  # draw; slot; inside; offset; report id
        service = ScriptedService(open_round(spec=spec))
        receipt = service.device(entropy=ReplayEntropy(words)).report(record)
        assert receipt.outcome is DeviceOutcome.SENT
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == slot
        assert base64.b64decode(report["value"]) == bytes([own])
