"""One round of each mechanism over HTTP: what devices send is what is tallied, and it says what they hold."""

import numpy as np
import pytest

from clustering.decoders import decoder
from clustering.plan import Tally
from clustering.tally import count
from models.round import Round
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.bulk import pack, perturb_records
from sfumato.specs import round_spec_from_wire, to_wire
from tests.service.api import Api, refused, single
from workers.runner import fold_alone

KINDS = ["grr", "ss", "oue", "olh", "hr"]
OCTETS = {"content-type": "application/octet-stream"}
GRID = {"type": "grid", "cells": [3, 3]}
RECORD = [0.1, 0.9]  # of every device; of that grid, symbol 2
N_REPORTS = 3000


@pytest.mark.parametrize("kind", KINDS)
class TestARound:
    def test_from_its_opening_to_its_tally(self, kind: str, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        opened = api.round(dataset_id, encoding=GRID, mechanism=kind, epsilon=2, target_reports=N_REPORTS)
        spec = round_spec_from_wire(opened["spec"])
        assert spec.mechanism == mechanisms.design(kind, 9, 2 * NANO)
        assert opened["spec"] == to_wire(spec)
        assert opened["epsilon"] == mechanisms.epsilon_nano(spec.mechanism) / NANO
        (asked,) = api.get(f"/datasets/{dataset_id}/round").json()["rounds"]
        assert asked["spec"] == opened["spec"]

        path = f"/rounds/{opened['id']}/reports"
        reports = perturb_records(spec, np.tile(RECORD, (N_REPORTS, 1)))
        first, others = pack(reports)[0].tobytes(), pack(reports)[1:].tobytes()
        one = single(report_id=first[:16].hex(), value=first[20:])
        assert api.post(path, one).json()["accepted"] == 1
        assert api.post(path, content=others, headers=OCTETS).json()["accepted"] == N_REPORTS - 1
        assert api.get(f"/rounds/{opened['id']}").json()["state"] == "closed"

        fold_alone(api.database, opened["id"])
        with api.database.reading() as session:
            tally = Tally.from_bytes(session.get_one(Round, opened["id"]).tally or b"")
        assert tally == count(spec, reports.slots.astype(np.int64), reports.values)
        (shares,) = decoder(spec.mechanism).frequencies(tally)
        assert shares == pytest.approx(
            np.eye(9)[2], abs=6 * decoder(spec.mechanism).variance(1, N_REPORTS) ** 0.5 + 0.1
        )
        assert shares.argmax() == 2

    def test_takes_no_value_that_its_devices_cannot_send(self, kind: str, api: Api) -> None:
        opened = api.round(api.dataset()["id"], encoding=GRID, mechanism=kind)
        mechanism = round_spec_from_wire(opened["spec"]).mechanism
        path = f"/rounds/{opened['id']}/reports"
        width = mechanisms.value_bytes(mechanism)
        problem = refused(api.post(path, single(value=b"\xff" * width)), 422, "report_malformed")
        assert problem["index"] == 0
        refused(api.post(path, single(value=bytes(width + 1))), 422, "report_malformed")
        good = perturb_records(round_spec_from_wire(opened["spec"]), [RECORD])
        mixed = pack(good).tobytes() + bytes(20) + b"\xff" * width
        assert refused(api.post(path, content=mixed, headers=OCTETS), 422, "report_malformed")["index"] == 1
        assert api.n_received(opened["id"]) == 0


class TestLimits:
    def test_hashing_over_more_symbols_than_are_counted_is_refused(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        body = {"encoding": GRID | {"cells": [65, 65]}, "mechanism": "olh", "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        assert api.get(f"/datasets/{dataset_id}/budget").json()["posted_nano"] == 0

    def test_coefficients_that_no_tally_holds_are_refused(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        shifted = {"type": "shifted_grid", "n_features": 2, "cells": 511, "shifts": 8}
        body = {"encoding": shifted, "mechanism": "hr", "epsilon": 1, "target_reports": 10}
        problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/encoding"
        assert api.made(f"/datasets/{dataset_id}/rounds", body | {"mechanism": "grr"})["state"] == "open"
