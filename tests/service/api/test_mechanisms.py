"""One round of each mechanism over HTTP: the tally counts the sent reports, and decodes to the devices' symbols."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustering.rounds.counting import count
from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Sample, Tally
from models.tables.rounds import Round
from sfumato import mechanisms
from sfumato.device.bulk import pack, perturb_records
from sfumato.privacy.accounting import NANO
from sfumato.specs import MAX_SAMPLE_VALUES, DiscreteLaplaceMechanism, RoundSpec, round_spec_from_wire, to_wire
from tests.service.api import SQLITE_ONLY, Api, refused, single
from workers.job_runner import aggregate_without_job

OCTETS = {"content-type": "application/octet-stream"}
GRID = {"type": "grid", "cells": [3, 3]}
LATTICE = {"type": "lattice", "n_features": 2, "steps": 100}
RECORD = [0.1, 0.9]  # record of every device; symbol 2 of the grid
N_REPORTS = 3000


def open_round(api: Api, **given: object) -> tuple[dict[str, Any], RoundSpec]:
    """Open a round in a new dataset. Return its document and its spec."""
    document = api.round(api.dataset()["id"], **given)
    spec = round_spec_from_wire(document["spec"])
    assert document["spec"] == to_wire(spec)
    return document, spec


def collect(api: Api, document: dict[str, Any], reports: Any) -> bytes:
    """Send the reports of all devices, one of them alone. Return the stored aggregate of the round."""
    path = f"/rounds/{document['id']}"
    first, others = pack(reports)[0].tobytes(), pack(reports)[1:].tobytes()
    one = single(report_id=first[:16].hex(), value=first[20:])
    assert api.post(f"{path}/reports", one).json()["accepted"] == 1
    response = api.post(f"{path}/reports", content=others, headers=OCTETS)
    assert response.json()["accepted"] == N_REPORTS - 1
    assert api.get(path).json()["state"] == "closed"
    aggregate_without_job(api.database, document["id"])
    with api.database.reading() as session:
        return session.get_one(Round, document["id"]).tally or b""


@SQLITE_ONLY
class TestRefusals:
    def test_of_an_impossible_round_of_vectors_cost_nothing(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        for change, pointer in (
            ({"mechanism": "ss"}, None),
            ({"encoding": {"type": "grid", "cells": [2, 2]}, "mechanism": "discrete_laplace"}, None),
            ({"encoding": LATTICE | {"steps": 1 << 16}, "epsilon": 0.001}, None),
            ({"encoding": LATTICE | {"n_features": 3}}, "/encoding"),
            ({"target_reports": MAX_SAMPLE_VALUES // 3 + 1}, "/target_reports"),
        ):
            body = {"encoding": LATTICE, "mechanism": "auto", "epsilon": 1, "target_reports": 10} | change
            problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
            assert pointer in (None, problem["errors"][0]["pointer"])
        assert api.budget(dataset_id)["charged_nano"] == 0
        for change in ({"clusters": 1}, {"clusters": None}, {"distance": "cosine"}, {"m": 1.0}):
            algorithm = {"type": "noisy_fcm", "epsilon": 1.0, "clusters": 3} | change
            body = {"dataset_id": dataset_id, "algorithm": algorithm, "target_reports": 100}
            refused(api.post("/jobs", body), 422, "validation_failed")


@SQLITE_ONLY
class TestRound:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr"])
    def test_turns_reports_into_a_tally(self, kind: str, api: Api) -> None:
        document, spec = open_round(api, encoding=GRID, mechanism=kind, epsilon=2, target_reports=N_REPORTS)
        assert spec.mechanism == mechanisms.design(kind, 10, 2 * NANO)  # one symbol for records outside
        assert document["epsilon"] == spec.mechanism.epsilon_nano() / NANO
        reports = perturb_records(spec, np.tile(RECORD, (N_REPORTS, 1)))
        tally = Tally.from_bytes(collect(api, document, reports))
        assert tally == count(spec, reports.slots.astype(np.int64), reports.values)
        (shares,) = decoder(spec.mechanism).frequencies(tally)
        tolerance = 6 * decoder(spec.mechanism).variance(1, N_REPORTS) ** 0.5 + 0.1
        assert shares == pytest.approx(np.eye(10)[2], abs=tolerance)
        assert shares.argmax() == 2

    @pytest.mark.parametrize("kind", ["auto", "discrete_laplace"])
    def test_turns_noisy_vectors_into_a_sample(self, kind: str, api: Api) -> None:
        document, spec = open_round(api, encoding=LATTICE, mechanism=kind, epsilon=2, target_reports=N_REPORTS)
        assert spec.mechanism == replace(DiscreteLaplaceMechanism.design(2, 100, 2 * NANO), mark=100)
        assert document["epsilon"] == 2
        reports = perturb_records(spec, np.tile([0.3, 0.5], (N_REPORTS, 1)))
        vectors = spec.mechanism.vectors_of(reports.values)  # type: ignore[arg-type]
        assert Sample.from_bytes(collect(api, document, reports)) == Sample(vectors)
        assert api.get(f"/rounds/{document['id']}").json()["n_reports"] == N_REPORTS

    @pytest.mark.parametrize(
        ("kind", "encoding"),
        [*((kind, GRID) for kind in ("grr", "ss", "oue", "olh", "hr")), ("auto", LATTICE)],
        ids=lambda value: value if isinstance(value, str) else value["type"],
    )
    def test_locates_the_first_malformed_report_and_stores_none(
        self, kind: str, encoding: dict[str, object], api: Api
    ) -> None:
        document, spec = open_round(api, encoding=encoding, mechanism=kind)
        path, width = f"/rounds/{document['id']}/reports", spec.mechanism.value_bytes
        good = perturb_records(spec, np.tile(RECORD, (5, 1)))
        packed = pack(good).tobytes()
        for bad in (b"\xff" * width, (9999).to_bytes(4, "little") + good.values[0].tobytes()):
            body = packed + bytes(20)[: 20 + width - len(bad)] + bad + packed
            assert refused(api.post(path, content=body, headers=OCTETS), 422, "report_malformed")["index"] == 5
        columns = {
            "report_ids": [row.tobytes().hex() for row in good.report_ids],
            "slots": good.slots.tolist(),
            "values": [base64.b64encode(row.tobytes()).decode() for row in good.values],
        }
        columns["values"][2] = base64.b64encode(b"\xff" * width).decode()
        assert refused(api.post(path, columns), 422, "report_malformed")["index"] == 2
        for wrong in (b"", bytes(width - 1), bytes(width + 1), b"\xff" * width):
            assert refused(api.post(path, single(value=wrong)), 422, "report_malformed")["index"] == 0
        assert api.n_received(str(document["id"])) == 0
