"""Shuffled datasets: releases, refusals, charges and tallies, with a fake shuffler on both databases."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import select, update

from models.collection import releases
from models.database.engine import Database
from models.encryption import Keyring, load_keyring
from models.tables.rounds import ReportBatch, Round, RoundKey
from runtime.settings import Settings
from service.ingestion.batch_reader import MAX_TARGETS
from service.ingestion.upload_memory import MemoryLimit, MemoryReservation
from sfumato.device.sealing import generate_round_key_pair, seal, sealed_length
from sfumato.privacy import shuffling
from sfumato.privacy.accountant import Cost, limit_release_mu2
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import epsilon_of
from sfumato.privacy.shuffled_rounds import gaussian_cost
from sfumato.specs import Participation, to_wire
from sfumato.transport.batches import MEDIA_TYPE, generate_signing_key_pair
from tests.models.world import spec
from tests.service.api import GRID, Api, claim_job, packed, refused, single, unknown
from tests.service.shuffler import SHUFFLER, TERMS, release, sealed_reports, send, shuffled_dataset, signed
from workers.aggregation import open_batch
from workers.job_runner import ClaimOutcome, aggregate_without_job, run


@pytest.fixture
def dataset_id(api: Api) -> str:
    return shuffled_dataset(api)


@pytest.fixture
def opened(api: Api, dataset_id: str) -> dict[str, Any]:
    return api.round(dataset_id, target_reports=20, **TERMS)


@pytest.fixture
def scratch(http: httpx.Client) -> MemoryLimit:
    transport: Any = http._transport
    found: MemoryLimit = transport._asgi.app.state.context.scratch
    return found


@pytest.fixture
def keyring(settings: Settings) -> Keyring:
    return load_keyring(settings)


def stored(database: Database, round_id: str) -> Round:
    with database.reading() as session:
        return session.get_one(Round, round_id)


def n_rows(database: Database, table: type[ReportBatch] | type[RoundKey], round_id: str) -> int:
    with database.reading() as session:
        return len(session.scalars(select(table).where(table.round_id == round_id)).all())


class TestDataset:
    @pytest.mark.parametrize(
        "other",
        [
            {"shuffler": None},
            {"shuffled": None},
            {"keep_reports": True},
            {"delta": 1e-6},
            {"features": {"dimensions": 8, "norm": 1.0}},
            {"trust": "local"},
            {"trust": "central"},
            {"shuffler": SHUFFLER | {"public_key": "AAAA"}},
            {"shuffler": SHUFFLER | {"url": "shuffler.example"}},
            {"shuffled": {"epsilon": 1, "delta": 0}},
        ],
        ids=range(10),
    )
    def test_needs_a_shuffler_and_both_grants(self, api: Api, other: dict[str, Any]) -> None:
        given = {"name": "d", "trust": "shuffled", "epsilon": 8, "shuffler": SHUFFLER}
        given |= {"features": [{"name": "x", "lower": 0.0, "upper": 1.0}], "shuffled": {"epsilon": 1, "delta": 1e-6}}
        members = {name: value for name, value in (given | other).items() if value is not None}
        refused(api.post("/datasets", members), 422, "validation_failed")

    def test_keeps_no_reports(self, api: Api, dataset_id: str) -> None:
        refused(api.patch(f"/datasets/{dataset_id}", {"keep_reports": True}), 422, "validation_failed")
        assert api.get(f"/datasets/{dataset_id}").json()["shuffler"] == SHUFFLER

    def test_grants_add_to_the_shuffled_budget(self, api: Api, dataset_id: str) -> None:
        grant = {"epsilon": 0, "shuffled": {"epsilon": 0.5, "delta": 1e-7}}
        refused(api.post(f"/datasets/{dataset_id}/grants", grant), 422, "validation_failed")  # above 1e-3 in total
        small = shuffled_dataset(api, shuffled={"epsilon": 1, "delta": 1e-6})
        api.made(f"/datasets/{small}/grants", grant)
        budget = api.budget(small)
        assert (budget["remaining_shuffled_nano"], budget["remaining_shuffled_delta_atto"]) == (
            1_500_000_000,
            1_100_000_000_000,
        )
        refused(api.post(f"/datasets/{api.dataset()['id']}/grants", grant), 422, "validation_failed")


class TestRound:
    def test_charges_both_figures_when_it_opens(self, api: Api, dataset_id: str, opened: dict[str, Any]) -> None:
        spec = stored(api.database, opened["id"]).spec
        expected = shuffling.epsilon(spec.mechanism.blanket(), 10, 10**12)
        budget = api.budget(dataset_id)
        assert (budget["charged_shuffled_nano"], budget["charged_shuffled_delta_atto"]) == (expected, 10**12)
        assert budget["charged_nano"] == round(opened["epsilon"] * NANO)
        assert (opened["shuffled_epsilon"], opened["shuffled_delta"]) == (expected / NANO, 10**12 / ATTO)
        with api.database.reading() as session:
            assert releases.find_wrong_charge(session, dataset_id) == ""

    @pytest.mark.parametrize("column", ["shuffled_nano", "min_batch", "shuffled_delta_atto"])
    def test_verification_computes_the_cost_again(
        self, api: Api, dataset_id: str, opened: dict[str, Any], column: str
    ) -> None:
        where = update(Round).where(Round.id == opened["id"])
        with api.database.transaction() as session:
            session.execute(where.values({column: 2 if column == "min_batch" else 10}))
        with api.database.reading() as session:
            assert opened["id"] in releases.find_wrong_charge(session, dataset_id)

    def test_counts_mu2_with_gaussian_accounting(self, api: Api) -> None:
        dataset_id = shuffled_dataset(api, accounting="gaussian")
        opened = [api.round(dataset_id, target_reports=20, **TERMS)["id"] for _ in range(2)]
        found = stored(api.database, opened[0])
        assert (found.shuffled_mu2_pico, 10**12) == gaussian_cost(found.spec.mechanism.blanket(), 10, 10**12)
        budget = api.budget(dataset_id)
        assert budget["charged_mu2_pico"] == 2 * found.shuffled_mu2_pico
        assert budget["granted_mu2_pico"] == limit_release_mu2(20 * NANO, 10**15)
        certified = epsilon_of(budget["charged_mu2_pico"], 10**15 // 2)
        assert certified is not None
        assert budget["spent"]["certified_shuffled_epsilon"] == certified / NANO
        assert budget["spent"]["certified_shuffled_delta"] == 1e-3
        assert budget["remaining_shuffled_delta_atto"] == 10**15 // 2 - 2 * 10**12
        shares = 1 - budget["charged_mu2_pico"] / budget["granted_mu2_pico"], 1 - 2 * 2e-6 / 1e-3
        assert budget["remaining_shuffled_share"] == pytest.approx(min(shares))
        with api.database.reading() as session:
            assert releases.find_wrong_charge(session, dataset_id) == ""
        with api.database.transaction() as session:
            forged = {"shuffled_mu2_pico": found.shuffled_mu2_pico * 4 // 5}
            session.execute(update(Round).where(Round.id == opened[0]).values(forged))
        with api.database.reading() as session:
            assert "the stated mu^2 is too small" in releases.find_wrong_charge(session, dataset_id)

    def test_counts_the_largest_mu2_of_disjoint_draws(self) -> None:
        """An increase of mu^2 alone still moves the pair, so that an entry shows what its mu^2 belongs to."""
        halves = (Participation.between(0, 0.5), Participation.between(0.5, 1))
        first, second = (spec(lo=each.lo / 2**64, hi=each.hi / 2**64) for each in halves)
        before = Round(spec_wire=to_wire(first), shuffled_nano=NANO, shuffled_delta_atto=5, shuffled_mu2_pico=100)
        assert releases.increase([before], second, Cost(NANO, 5, 130)) == Cost(1, 0, 30)
        assert releases.increase([before], second, Cost(2 * NANO, 5, 100)) == Cost(NANO, 0, 1)
        assert releases.increase([before], second, Cost(NANO, 5, 100)) == Cost(0, 0, 0)
        assert releases.increase([before], first, Cost(NANO, 5, 0)) == Cost(NANO, 5, 0)

    def test_is_refused_before_a_charge_if_the_shuffled_grant_is_too_small(self, api: Api) -> None:
        small = shuffled_dataset(api, shuffled={"epsilon": 0.001, "delta": 1e-3})
        body = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 20} | TERMS
        problem = refused(api.post(f"/datasets/{small}/rounds", body), 409, "budget_exhausted")
        assert problem["short"] == "shuffled_epsilon"
        small = shuffled_dataset(api, shuffled={"epsilon": 20, "delta": 1e-7})
        problem = refused(api.post(f"/datasets/{small}/rounds", body), 409, "budget_exhausted")
        assert problem["short"] == "shuffled_delta"
        assert api.budget(small)["charged_nano"] == 0

    @pytest.mark.parametrize(
        ("other", "pointer"),
        [
            ({"min_batch": None}, "/min_batch"),
            ({"honest_share": None}, "/honest_share"),
            ({"honest_share": 0.01}, "/min_batch"),
            ({"honest_share": 0}, "/honest_share"),
            ({"honest_share": 1.1}, "/honest_share"),
            ({"shuffled_delta": 0}, "/shuffled_delta"),
        ],
    )
    def test_needs_valid_terms(self, api: Api, dataset_id: str, other: dict[str, Any], pointer: str) -> None:
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 20} | TERMS | other
        body = {name: value for name, value in body.items() if value is not None}
        problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == pointer

    def test_refuses_noisy_vectors_and_terms_of_other_datasets(self, api: Api, dataset_id: str) -> None:
        lattice = {"type": "lattice", "n_features": 2, "steps": 16}
        body = {"encoding": lattice, "epsilon": 1, "target_reports": 20} | TERMS
        refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        local = api.dataset()["id"]
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 20} | TERMS
        refused(api.post(f"/datasets/{local}/rounds", body), 422, "validation_failed")
        assert api.budget(dataset_id)["charged_nano"] == api.budget(local)["charged_nano"] == 0

    def test_accepts_no_reports_from_devices(self, api: Api, opened: dict[str, Any]) -> None:
        refused(api.report(opened["id"]), 409, "conflict")
        octets = {"Content-Type": "application/octet-stream"}
        path = f"/rounds/{opened['id']}/reports"
        refused(api.post(path, content=packed(3), headers=octets), 409, "conflict")
        columns = {"report_ids": [single()["report_id"]], "slots": [0], "values": [single()["value"]]}
        refused(api.post(path, columns), 409, "conflict")
        assert api.n_received(opened["id"]) == 0


class TestRelease:
    def test_is_stored_and_hidden_until_then(self, api: Api, opened: dict[str, Any]) -> None:
        round_id = opened["id"]
        batch = signed(round_id, sealed_reports(api, round_id, 25))
        assert api.n_received(round_id) == 0
        first = send(api, round_id, batch.body)
        assert (first.status_code, first.json()) == (202, {"round_id": round_id, "accepted": 25})
        document = api.get(f"/rounds/{round_id}").json()
        assert (document["state"], document["n_received"]) == ("closed", 25)
        again = send(api, round_id, batch.body)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert api.n_received(round_id) == 25

    def test_of_other_bytes_is_refused_after_the_first(self, api: Api, opened: dict[str, Any]) -> None:
        reports = sealed_reports(api, opened["id"], 20)
        assert send(api, opened["id"], signed(opened["id"], reports).body).status_code == 202
        other = signed(opened["id"], reports[::-1])
        refused(send(api, opened["id"], other.body), 409, "conflict")
        assert api.n_received(opened["id"]) == 20

    def test_must_be_a_whole_signed_batch_of_this_round(
        self, api: Api, dataset_id: str, opened: dict[str, Any]
    ) -> None:
        round_id = opened["id"]
        reports = sealed_reports(api, round_id, 20)
        batch = signed(round_id, reports)
        other = api.round(dataset_id, target_reports=20, **TERMS)["id"]
        changed = bytearray(batch.body)
        changed[-1] ^= 1
        stranger, _ = generate_signing_key_pair()
        wrong = {
            "empty": b"",
            "head only": batch.body[:68],
            "truncated head": batch.body[:30],
            "truncated report": batch.body[:-1],
            "dropped report": batch.body[: -len(reports[0])],
            "changed": bytes(changed),
            "forged": b"\0" * 64 + batch.body[64:],
            "another key": signed(round_id, reports, stranger).body,
            "another round": signed(other, reports).body,
            "another length": signed(round_id, [each + b"\0" for each in reports]).body,
            "too small": signed(round_id, reports[:19]).body,
        }
        for name, body in wrong.items():
            problem = refused(send(api, round_id, body), 422, "batch_refused")
            assert problem["detail"], name
        refused(send(api, round_id, batch.body, "application/json"), 415, "unsupported_media_type")
        assert (api.n_received(round_id), n_rows(api.database, ReportBatch, round_id)) == (0, 0)
        assert send(api, round_id, batch.body).status_code == 202  # nothing is lost

    def test_has_a_greatest_length(self, api: Api, opened: dict[str, Any], scratch: MemoryLimit) -> None:
        report = sealed_reports(api, opened["id"], 1)[0]
        most = MAX_TARGETS * opened["target_reports"] * len(report)
        head = bytes(64) + len(report).to_bytes(4, "big")
        stated = {"Content-Length": str(len(head) + most + 1)}

        def pieces(n_bytes: int) -> Iterator[bytes]:
            yield from (head, bytes(n_bytes))

        for headers in ({}, stated):
            headers |= {"Content-Type": MEDIA_TYPE}
            body = pieces(most + 1)
            problem = refused(
                api.post(f"/rounds/{opened['id']}/batches", content=body, headers=headers), 422, "batch_refused"
            )
            assert "too long" in problem["detail"]
            assert scratch.n_bytes == 0
        problem = refused(send(api, opened["id"], head + bytes(most)), 422, "batch_refused")
        assert "signature" in problem["detail"]

    def test_waits_if_other_batches_fill_the_scratch_space(
        self, api: Api, opened: dict[str, Any], scratch: MemoryLimit
    ) -> None:
        batch = signed(opened["id"], sealed_reports(api, opened["id"], 20))
        room = scratch._max_bytes - len(batch.body)
        with MemoryReservation(scratch) as others:  # the gateway is shared with other tests
            others.grow(room + 1)
            refused(send(api, opened["id"], batch.body), 503, "unavailable")
        with MemoryReservation(scratch) as others:
            others.grow(room)
            assert send(api, opened["id"], batch.body).status_code == 202
        assert scratch.n_bytes == 0

    def test_needs_a_shuffled_open_round_and_a_scope(self, api: Api, opened: dict[str, Any]) -> None:
        batch = signed(opened["id"], sealed_reports(api, opened["id"], 20))
        refused(send(api.key("ledger"), opened["id"], batch.body), 403, "forbidden")
        refused(send(api, unknown("rnd"), batch.body), 404, "not_found")
        local = api.round(api.dataset()["id"])["id"]
        refused(send(api, local, batch.body), 409, "conflict")
        api.post(f"/rounds/{opened['id']}/close?allow_empty=true")
        refused(send(api, opened["id"], batch.body), 409, "round_closed")

    def test_can_follow_the_end_of_the_round(self, api: Api, opened: dict[str, Any]) -> None:
        from models.collection import rounds

        batch = signed(opened["id"], sealed_reports(api, opened["id"], 20))
        closes_at = stored(api.database, opened["id"]).closes_at
        with api.database.transaction() as session:
            rounds.close_due(session, now=closes_at + 1)
        assert stored(api.database, opened["id"]).state == "open"
        assert send(api, opened["id"], batch.body).status_code == 202

    def test_never_comes_if_it_is_too_late(self, api: Api, opened: dict[str, Any]) -> None:
        from models.collection import rounds
        from models.tables.rounds import RELEASE_SECONDS

        batch = signed(opened["id"], sealed_reports(api, opened["id"], 20))
        closes_at = stored(api.database, opened["id"]).closes_at
        with api.database.transaction() as session:
            rounds.close_due(session, now=closes_at + RELEASE_SECONDS * 1_000_000)
        refused(send(api, opened["id"], batch.body), 409, "round_closed")


class TestTally:
    def test_counts_each_valid_report_once(self, api: Api, opened: dict[str, Any], keyring: Keyring) -> None:
        round_id = opened["id"]
        same = secrets.token_bytes(16)
        value_bytes = 1
        other_key = generate_round_key_pair().public_key
        reports = sealed_reports(api, round_id, 30)
        reports += sealed_reports(api, round_id, 2, ids=[same, same])
        reports += sealed_reports(api, round_id, 2, hpke_public_key=other_key)
        reports += sealed_reports(api, round_id, 2, round_bytes=b"{}")
        reports += sealed_reports(api, round_id, 2, round_id=unknown("rnd"))
        reports += [secrets.token_bytes(sealed_length(value_bytes))]
        assert send(api, round_id, signed(round_id, reports).body).status_code == 202
        aggregate_without_job(api.database, round_id, keyring=lambda: keyring)
        aggregate_without_job(api.database, round_id, keyring=lambda: keyring)  # a second worker
        document = api.get(f"/rounds/{round_id}").json()
        assert (document["state"], document["n_received"], document["n_reports"]) == ("tallied", len(reports), 31)
        assert n_rows(api.database, RoundKey, round_id) == n_rows(api.database, ReportBatch, round_id) == 0

    def test_is_withheld_with_too_few_valid_reports(
        self, api: Api, dataset_id: str, opened: dict[str, Any], keyring: Keyring
    ) -> None:
        round_id = opened["id"]
        charged = api.budget(dataset_id)["charged_shuffled_nano"]
        reports = sealed_reports(api, round_id, 9) + [secrets.token_bytes(sealed_length(1)) for _ in range(11)]
        send(api, round_id, signed(round_id, reports).body)
        aggregate_without_job(api.database, round_id, keyring=lambda: keyring)
        with api.database.reading() as session:
            found = session.get_one(Round, round_id)
            assert (found.state, found.n_reports, found.tally) == ("tallied", 9, None)
        assert api.budget(dataset_id)["charged_shuffled_nano"] == charged > 0
        events = api.list_all("/audit", limit=20, dataset_id=dataset_id)
        (event,) = [each for each in events if each["act"] == "tally.withheld"]
        assert event["details"] == {"n_released": 20, "n_valid": 9, "n_honest": 10}
        assert (event["subject_id"], event["actor"]) == (round_id, "operator")
        job_id = api.job(dataset_id, round_ids=[round_id], target_reports=None, allow_insufficient=True)["id"]
        assert run(api.database, claim_job(api.database, job_id), keyring=lambda: keyring) is ClaimOutcome.FAILED
        assert api.get(f"/jobs/{job_id}").json()["error"]["code"] == "too_few_reports"

    def test_survives_a_lost_worker(
        self, api: Api, opened: dict[str, Any], keyring: Keyring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        release(api, opened["id"], 25)

        def die(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("workers.aggregation.open_batch._open_frame", die)
            with pytest.raises(KeyboardInterrupt):
                aggregate_without_job(api.database, opened["id"], keyring=lambda: keyring)
        assert n_rows(api.database, RoundKey, opened["id"]) == 1
        aggregate_without_job(api.database, opened["id"], keyring=lambda: keyring)
        assert api.get(f"/rounds/{opened['id']}").json()["n_reports"] == 25

    def test_key_is_deleted_with_the_dataset(self, api: Api, dataset_id: str, opened: dict[str, Any]) -> None:
        assert n_rows(api.database, RoundKey, opened["id"]) == 1
        api.delete(f"/datasets/{dataset_id}")
        assert n_rows(api.database, RoundKey, opened["id"]) == 0


class TestJob:
    TERMS = {"min_batch": 1000, "honest_share": 0.5, "target_reports": 1000, "allow_insufficient": True}  # noqa: RUF012
    CELLS = {"type": "uniform_grid", "epsilon": 4.0, "clusters": 2, "cells": 4}  # noqa: RUF012

    def test_collects_a_release_and_succeeds(self, api: Api, dataset_id: str, keyring: Keyring) -> None:
        job_id = api.job(dataset_id, algorithm=self.CELLS, **self.TERMS)["id"]
        assert run(api.database, claim_job(api.database, job_id), keyring=lambda: keyring) is ClaimOutcome.COLLECTING
        job = api.get(f"/jobs/{job_id}").json()
        round_id = job["progress"]["open_round_id"]
        budget = api.budget(dataset_id)
        assert budget["charged_shuffled_nano"] > 0
        assert (budget["charged_shuffled_delta_atto"], budget["remaining_shuffled_nano"] > 0) == (10**12, True)
        release(api, round_id, 1000)
        assert run(api.database, claim_job(api.database, job_id), keyring=lambda: keyring) is ClaimOutcome.SUCCEEDED
        assert api.get(f"/jobs/{job_id}/result").json()["rounds"][0]["n_reports"] == 1000
        assert budget["spent"]["more_jobs"] == 1  # the local epsilon limits it
        with api.database.reading() as session:
            assert releases.find_wrong_charge(session, dataset_id) == ""

    def test_fails_before_a_charge_if_the_shuffled_grant_is_too_small(self, api: Api, keyring: Keyring) -> None:
        small = shuffled_dataset(api, shuffled={"epsilon": 0.001, "delta": 1e-6})
        job_id = api.job(small, algorithm=self.CELLS, **self.TERMS)["id"]
        assert run(api.database, claim_job(api.database, job_id), keyring=lambda: keyring) is ClaimOutcome.FAILED
        assert api.get(f"/jobs/{job_id}").json()["error"]["code"] == "budget_exhausted"
        assert api.budget(small)["charged_nano"] == api.budget(small)["reserved_nano"] == 0

    def test_states_how_many_more_like_it_the_releases_allow(self, api: Api, keyring: Keyring) -> None:
        dataset_id = shuffled_dataset(api, epsilon=30, accounting="gaussian", shuffled={"epsilon": 4, "delta": 8e-6})
        job_id = api.job(dataset_id, algorithm=self.CELLS, **self.TERMS)["id"]
        assert run(api.database, claim_job(api.database, job_id), keyring=lambda: keyring) is ClaimOutcome.COLLECTING
        budget = api.budget(dataset_id)
        assert budget["reserved_mu2_pico"] == 0 < budget["charged_mu2_pico"]
        left = budget["granted_mu2_pico"] - budget["charged_mu2_pico"]
        assert budget["spent"]["more_jobs"] == min(3, left // budget["charged_mu2_pico"])  # limited by delta or by mu^2

    def test_needs_terms_and_a_known_blanket(self, api: Api, dataset_id: str) -> None:
        body = {"dataset_id": dataset_id, "algorithm": self.CELLS, "target_reports": 1000}
        refused(api.post("/jobs", body), 422, "validation_failed")
        vectors = {"type": "noisy_fcm", "epsilon": 4.0, "clusters": 2}
        problem = refused(api.post("/jobs", body | self.TERMS | {"algorithm": vectors}), 422, "validation_failed")
        assert "not known" in problem["detail"]


class TestOpening:
    def test_in_processes_equals_opening_in_one(self) -> None:
        pair, round_id, value_bytes = generate_round_key_pair(), unknown("rnd"), 3
        reports = [
            seal(secrets.token_bytes(16), i, bytes([i, 1, 2]), round_id, b"{}", pair.public_key) for i in range(9)
        ]
        rows = [b"".join(reports), secrets.token_bytes(71)]
        found = [
            open_batch.open_batch(rows, 10, value_bytes, round_id, b"{}", pair.private_key, n_processes=n)
            for n in (1, 2)
        ]
        assert found[0].shape == (9, 23)
        assert np.array_equal(*found)
        assert [*map(bytes, found[0])] == sorted(map(bytes, found[0]))  # nothing of the order of the batch remains

    def test_process_ends_when_its_pipe_closes(self) -> None:
        process = subprocess.Popen([sys.executable, "-m", "workers.aggregation.open_batch"], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_gateway_loads_no_numba() -> None:
    code = "import service.app, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
