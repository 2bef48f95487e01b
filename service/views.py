"""Rows as they travel.

What holds a spec or an algorithm goes out as it was stored, unchecked: a newer gateway beside
this one may have stored a kind this one does not know.
"""

from collections.abc import Sequence
from typing import Any

from models import answer, audit, ledger, record, tenant
from models import dataset as datasets
from models import job as jobs
from models import result as results
from models import round as rounds
from models.db import canonical_json
from service import key_resources, resources
from service.clock import optional_timestamp, timestamp
from sfumato.accounting import ATTO, NANO

Json = dict[str, Any]


def epsilon(nano: int) -> float:
    """Nano-epsilon as the number people read; exact for what a double holds."""
    return nano / NANO


def delta(atto: int) -> float:
    """Atto-delta as the number people read; exact for what a double holds."""
    return atto / ATTO


def dataset(row: datasets.Dataset) -> resources.Dataset:
    """A dataset."""
    return resources.Dataset.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "trust": row.trust,
            "features": row.features_wire,
            "min_reports": row.min_reports,
            "keep_reports": row.keep_reports,
            "user_feature": row.user_feature,
            "max_records_per_user": row.max_records_per_user,
            "out_of_bounds": row.out_of_bounds,
            "created_at": timestamp(row.created_at),
        }
    )


def record_counts(counts: record.Counts, users: record.Users | None, *, by_user: bool) -> resources.RecordCounts:
    """How many records a dataset has. `users` is None where it has no records, or none by user."""
    n_users = users.n_users if users else 0
    return resources.RecordCounts(
        **counts._asdict(), n_users=n_users if by_user else None, n_used=users.n_used if users else counts.n_records
    )


def budget(last: ledger.LedgerEntry) -> resources.Budget:
    """A budget, by its ledger's last entry."""
    balance = ledger.balance_after(last)
    return resources.Budget(
        dataset_id=last.dataset_id,
        granted=epsilon(balance.granted_nano),
        reserved=epsilon(balance.reserved_nano),
        posted=epsilon(balance.posted_nano),
        remaining=epsilon(balance.free_nano),
        remaining_nano=balance.free_nano,
        delta_granted=delta(balance.granted_delta_atto),
        delta_reserved=delta(balance.reserved_delta_atto),
        delta_posted=delta(balance.posted_delta_atto),
        delta_remaining=delta(balance.free_delta_atto),
        remaining_delta_atto=balance.free_delta_atto,
        **balance._asdict(),
        ledger_seq=last.seq,
        ledger_hash=last.hash,
    )


def ledger_entry(row: ledger.LedgerEntry) -> resources.LedgerEntry:
    """A ledger entry."""
    columns = {column.key: getattr(row, column.key) for column in ledger.LedgerEntry.__table__.columns}
    told = {"epsilon": epsilon(row.epsilon_nano), "delta": delta(row.delta_atto), "at": timestamp(row.at)}
    return resources.LedgerEntry.model_validate(columns | told)


def round_(row: rounds.Round) -> Json:
    """A round: the schema `Round`."""
    return {
        "id": row.id,
        "dataset_id": row.dataset_id,
        "job_id": row.job_id,
        "collection_id": row.collection_id,
        "index": row.index,
        "state": row.state,
        "epsilon": epsilon(row.epsilon_nano),
        "spec": row.spec_wire,
        "target_reports": row.target_reports,
        "min_reports": row.min_reports,
        "n_received": row.n_received,
        "n_reports": row.n_reports,
        "opened_at": timestamp(row.opened_at),
        "closes_at": timestamp(row.closes_at),
        "closed_at": optional_timestamp(row.closed_at),
        "tallied_at": optional_timestamp(row.tallied_at),
    }


def device_rounds(rows: Sequence[rounds.Round]) -> bytes:
    """The schema `DeviceRounds`: what devices may answer: the same bytes whoever asks."""
    return canonical_json(
        {
            "rounds": [
                {
                    "id": row.id,
                    "collection_id": row.collection_id,
                    "index": row.index,
                    "epsilon": epsilon(row.epsilon_nano),
                    "closes_at": timestamp(row.closes_at),
                    "spec": row.spec_wire,
                }
                for row in rows
            ]
        }
    ).encode()


def job(row: jobs.Job, own_rounds: Sequence[rounds.Round]) -> Json:
    """A job with its progress: the schema `Job`. `own_rounds` in order."""
    target_reports = None if row.round_ids else row.target_reports or None  # 0: over records
    still_open = [each.id for each in own_rounds if each.state == rounds.RoundState.OPEN]
    return {
        "id": row.id,
        "dataset_id": row.dataset_id,
        "algorithm": _without_unset(row.algorithm),
        "round_ids": row.round_ids,
        "state": row.state,
        "epsilon": epsilon(row.epsilon_nano),
        "delta": delta(row.delta_atto),
        "target_reports": target_reports,
        "min_reports": row.min_reports,
        "collect_seconds": row.collect_seconds,
        "progress": {
            "rounds_opened": len(own_rounds),
            "open_round_id": still_open[0] if still_open else None,
            "n_received": own_rounds[-1].n_received if own_rounds else 0,
            "target_reports": own_rounds[-1].target_reports if own_rounds else target_reports,
        },
        "attempts": row.attempts,
        "error": None if row.error_code is None else {"code": row.error_code, "detail": row.error_detail or ""},
        "created_at": timestamp(row.created_at),
        "started_at": optional_timestamp(row.started_at),
        "finished_at": optional_timestamp(row.finished_at),
    }


def _without_unset(algorithm: Json) -> Json:
    return {name: value for name, value in algorithm.items() if value is not None}


def result(row: results.Result, of: jobs.Job) -> Json:
    """A result, the schema `Result`; its model goes out as it was stored."""
    document = row.document
    odometer = document.get("odometer", ())
    return {
        "job_id": of.id,
        "dataset_id": of.dataset_id,
        "algorithm": _without_unset(document["algorithm"]),
        "epsilon": epsilon(document["epsilon_nano"]),
        "delta": delta(document.get("delta_atto", 0)),
        "rounds": [
            {
                "id": used["id"],
                "index": used["index"],
                "n_reports": used["n_reports"],
                "epsilon": epsilon(used["epsilon_nano"]),
            }
            for used in document["rounds"]
        ],
        "odometer": [_charge(asked, answer.reference(of.id, index)) for index, asked in enumerate(odometer)],
        # older results do not tell them
        "model": {"centroid_errors": None, "encoding": None, "memberships": None} | document["model"],
        "software_version": row.software_version,
        "created_at": timestamp(row.created_at),
    }


def _charge(asked: Json, reference: str) -> Json:
    """A line of the odometer; older results have no delta and no blocks."""
    asked = {"delta_atto": 0, "rho_pico": 0} | asked
    amounts = {"epsilon": epsilon(asked["epsilon_nano"]), "delta": delta(asked["delta_atto"])}
    return asked | amounts | {"reference": reference}


def key(row: tenant.Key) -> key_resources.Key:
    """A key, without its secret."""
    return key_resources.Key.model_validate(_key_members(row))


def new_key(row: tenant.Key, secret: str | None) -> key_resources.NewKeySecret:
    """A key as it was made; without the secret where a repeated request is answered."""
    return key_resources.NewKeySecret.model_validate(_key_members(row) | {"secret": secret})


def _key_members(row: tenant.Key) -> dict[str, Any]:
    """What is told of a key."""
    return {
        "id": row.id,
        "name": row.name,
        "scopes": row.scopes,
        "dataset_id": row.dataset_id,
        "created_at": timestamp(row.created_at),
        "expires_at": optional_timestamp(row.expires_at),
        "revoked_at": optional_timestamp(row.revoked_at),
        "replaces": row.replaces,
        "replaced_by": row.replaced_by,
    }


def audit_event(row: audit.AuditEvent) -> key_resources.AuditEvent:
    """An act of administration."""
    columns = {column.key: getattr(row, column.key) for column in audit.AuditEvent.__table__.columns}
    return key_resources.AuditEvent.model_validate(columns | {"at": timestamp(row.at)})
