"""Test data: central datasets and uploads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import datasets
from models.encryption import Keyring
from models.records import record_keys, records
from models.records.records import RecordCounts, Records, Upload
from models.tables.datasets import Dataset, Trust
from sfumato.specs import LATTICE
from tests.models.world import World

RING = Keyring((bytes(range(32)),))
MANY = 10**9


def central(world: World, **other: Any) -> Dataset:
    """Create a central dataset with two features."""
    return world.new_dataset(trust=Trust.CENTRAL, **other)


def begin(world: World, within: Dataset, ring: Keyring = RING) -> Upload:
    """Begin an upload."""
    with world.database.transaction() as session:
        datasets.get(session, world.caller, within.id, lock=True)
        return Upload(record_keys.open_or_create(session, within.id, ring), len(within.features))


def store(world: World, upload: Upload, max_records: int = MANY) -> None:
    with world.database.transaction() as session:
        datasets.get(session, world.caller, upload.key.dataset_id, lock=True)
        records.append(session, upload, max_records=max_records, allow_duplicates=True)


def upload(
    world: World, within: Dataset, points: Any, users: Sequence[bytes] | None = None, n_clipped: int = 0
) -> Upload:
    """Store one upload."""
    made = begin(world, within)
    made.add(np.asarray(points, dtype=np.int32).reshape(-1, 2), users, n_clipped)
    store(world, made)
    return made


def load(world: World, within: Dataset, ring: Keyring = RING) -> Records:
    return world.read(records.load, within.id, ring)


def counts(world: World, within: Dataset) -> RecordCounts:
    return world.read(records.count, within.id)


def some(n: int, seed: int = 0) -> NDArray[np.int32]:
    """Return random points that include both ends of the lattice."""
    points = np.random.default_rng(seed).integers(0, LATTICE, (n, 2)).astype(np.int32)
    points[0], points[-1] = 0, LATTICE - 1
    return points
