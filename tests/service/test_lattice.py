"""A round of noisy vectors over HTTP: reports come in, malformed ones are named, and a sample is what is kept."""

import base64

import numpy as np
import pytest

from clustering.plan import Sample
from models.round import Round
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.bulk import pack, perturb_records
from sfumato.mechanisms import discrete_laplace
from sfumato.specs import MAX_SAMPLE_VALUES, RoundSpec, round_spec_from_wire, to_wire
from tests.service.api import Api, refused, single
from workers.runner import fold_alone

LATTICE = {"type": "lattice", "n_features": 2, "steps": 100}
OCTETS = {"content-type": "application/octet-stream"}
N_REPORTS = 2000


def opened(api: Api, **other: object) -> tuple[dict[str, object], RoundSpec]:
    """An open round of vectors, and its spec."""
    given = {"encoding": LATTICE, "mechanism": "auto", "epsilon": 2, "target_reports": N_REPORTS}
    document = api.round(api.dataset()["id"], **(given | other))
    return document, round_spec_from_wire(document["spec"])


class TestARound:
    @pytest.mark.parametrize("kind", ["auto", "discrete_laplace"])
    def test_from_its_opening_to_its_sample(self, kind: str, api: Api) -> None:
        document, spec = opened(api, mechanism=kind)
        assert spec.mechanism == discrete_laplace.design(2, 100, 2 * NANO)
        assert document["spec"] == to_wire(spec)
        assert document["epsilon"] == 2
        path = f"/rounds/{document['id']}/reports"
        reports = perturb_records(spec, np.tile([0.3, 0.5], (N_REPORTS, 1)))
        first, others = pack(reports)[0].tobytes(), pack(reports)[1:].tobytes()
        assert api.post(path, single(report_id=first[:16].hex(), value=first[20:])).json()["accepted"] == 1
        assert api.post(path, content=others, headers=OCTETS).json()["accepted"] == N_REPORTS - 1
        assert api.get(f"/rounds/{document['id']}").json()["state"] == "closed"

        fold_alone(api.database, str(document["id"]))
        with api.database.reading() as session:
            kept = session.get_one(Round, document["id"]).tally or b""
        vectors = discrete_laplace.vectors_of(spec.mechanism, reports.values)  # type: ignore[arg-type]
        assert Sample.from_bytes(kept) == Sample(vectors)
        assert api.get(f"/rounds/{document['id']}").json()["n_reports"] == N_REPORTS

    def test_names_the_first_malformed_report_and_keeps_none(self, api: Api) -> None:
        document, spec = opened(api)
        path = f"/rounds/{document['id']}/reports"
        width = mechanisms.value_bytes(spec.mechanism)
        good = perturb_records(spec, np.tile([0.3, 0.5], (5, 1)))
        packed = pack(good).tobytes()
        mixed = packed + bytes(20) + b"\xff" * width + packed
        assert refused(api.post(path, content=mixed, headers=OCTETS), 422, "report_malformed")["index"] == 5
        other_slot = bytes(16) + (1).to_bytes(4, "little") + good.values[0].tobytes()
        problem = refused(api.post(path, content=packed + other_slot, headers=OCTETS), 422, "report_malformed")
        assert problem["index"] == 5
        columns = {
            "report_ids": [row.tobytes().hex() for row in good.report_ids],
            "slots": [0] * 5,
            "values": [base64.b64encode(row.tobytes()).decode() for row in good.values],
        }
        columns["values"][2] = base64.b64encode(b"\xff" * width).decode()
        assert refused(api.post(path, columns), 422, "report_malformed")["index"] == 2
        for wrong in (b"", bytes(width - 1), bytes(width + 1), b"\xff" * width):
            assert refused(api.post(path, single(value=wrong)), 422, "report_malformed")["index"] == 0
        assert api.n_received(str(document["id"])) == 0


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"mechanism": "ss"}, None),
            ({"encoding": {"type": "grid", "cells": [2, 2]}, "mechanism": "discrete_laplace"}, None),
            ({"encoding": LATTICE | {"steps": 1 << 16}, "epsilon": 0.001}, None),
            ({"encoding": LATTICE | {"n_features": 3}}, "/encoding"),
            ({"target_reports": MAX_SAMPLE_VALUES // 2 + 1}, "/target_reports"),
        ],
    )
    def test_before_anything_is_posted(self, change: dict[str, object], pointer: str | None, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        body = {"encoding": LATTICE, "mechanism": "auto", "epsilon": 1, "target_reports": 10} | change
        problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        if pointer is not None:
            assert problem["errors"][0]["pointer"] == pointer
        assert api.get(f"/datasets/{dataset_id}/budget").json()["posted_nano"] == 0

    @pytest.mark.parametrize("change", [{"clusters": 1}, {"clusters": None}, {"distance": "cosine"}, {"m": 1.0}])
    def test_a_job_of_impossible_parameters(self, change: dict[str, object], api: Api) -> None:
        algorithm = {"type": "noisy_fcm", "epsilon": 1.0, "clusters": 3} | change
        body = {"dataset_id": api.dataset()["id"], "algorithm": algorithm, "target_reports": 100}
        refused(api.post("/jobs", body), 422, "validation_failed")
