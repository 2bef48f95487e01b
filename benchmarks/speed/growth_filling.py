"""Rows that `growth` fills a database with, as the service would have left them."""

import hashlib
from typing import Any

from models.dataset import Trust
from models.db import SECOND, new_id, system_clock
from models.job import JobState
from models.round import RoundState
from models.tenant import Caller
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.specs import Draw, Feature, GridEncoding, RoundSpec, to_wire

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
SPEC = RoundSpec(FEATURES, GridEncoding((2, 2)), mechanisms.design("grr", 4, NANO), Draw.between(0.0, 1.0))


def dataset(caller: Caller, number: int) -> dict[str, Any]:
    """A local one."""
    return {
        "id": new_id("ds"),
        "tenant_id": caller.tenant_id,
        "name": f"d{number}",
        "trust": Trust.LOCAL.value,
        "features": [to_wire(feature) for feature in FEATURES],
        "min_reports": 1,
        "keep_reports": False,
        "created_at": system_clock(),
        "deleted_at": None,
    }


def key(caller: Caller, number: int) -> dict[str, Any]:
    """A device's."""
    return {
        "id": new_id("key"),
        "tenant_id": caller.tenant_id,
        "name": "device",
        "secret_hash": hashlib.sha256(b"key %d" % number).digest(),
        "scopes": ["device"],
        "created_at": system_clock(),
    }


def round(dataset_id: str, state: RoundState) -> dict[str, Any]:
    """A collection of its own."""
    now, made = system_clock(), new_id("rnd")
    return {
        "id": made,
        "dataset_id": dataset_id,
        "collection_id": made,
        "index": 0,
        "spec": to_wire(SPEC),
        "epsilon_nano": NANO,
        "target_reports": 10**9,
        "min_reports": 1,
        "closes_at": now + 10**6 * SECOND,
        "state": state.value,
        "n_received": 0,
        "opened_at": now,
        "fold_attempts": 0,
    }


def job(caller: Caller, dataset_id: str, state: JobState) -> dict[str, Any]:
    """One that waits, or one that is over."""
    return {
        "id": new_id("job"),
        "tenant_id": caller.tenant_id,
        "dataset_id": dataset_id,
        "algorithm": {"type": "uniform_grid", "epsilon": 1},
        "round_ids": [],
        "epsilon_nano": NANO,
        "target_reports": 100,
        "min_reports": 1,
        "collect_seconds": 3600,
        "state": state.value,
        "attempts": 0,
        "fence": 0,
        "cancel_requested": False,
        "created_by": caller.key_id,
        "created_at": system_clock(),
    }
