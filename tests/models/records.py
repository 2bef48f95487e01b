"""Central datasets and uploads into them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import dataset as datasets
from models import record, record_key
from models.dataset import Dataset, Trust
from models.record import Counts, Records, Upload
from models.sealing import Keyring
from sfumato.specs import LATTICE
from tests.models.world import World

RING = Keyring((bytes(range(32)),))
MANY = 10**9


def central(world: World, **other: Any) -> Dataset:
    """A central dataset of two features."""
    return world.new_dataset(trust=Trust.CENTRAL, **other)


def begin(world: World, within: Dataset, ring: Keyring = RING) -> Upload:
    """An upload to be filled."""
    with world.database.transaction() as session:
        datasets.get(session, world.caller, within.id, lock=True)
        return Upload(record_key.open_or_make(session, within.id, ring), len(within.features))


def store(world: World, upload: Upload, max_records: int = MANY) -> None:
    with world.database.transaction() as session:
        datasets.get(session, world.caller, upload.key.dataset_id, lock=True)
        record.append(session, upload, max_records=max_records)


def upload(
    world: World, within: Dataset, points: Any, users: Sequence[bytes] | None = None, n_clipped: int = 0
) -> Upload:
    """One upload, stored."""
    made = begin(world, within)
    made.add(np.asarray(points, dtype=np.int32).reshape(-1, 2), users, n_clipped)
    store(world, made)
    return made


def load(world: World, within: Dataset, ring: Keyring = RING) -> Records:
    with world.database.reading() as session:
        return record.load(session, within.id, ring)


def counts(world: World, within: Dataset) -> Counts:
    with world.database.reading() as session:
        return record.count(session, within.id)


def some(n: int, seed: int = 0) -> NDArray[np.int32]:
    """Points, both ends of the lattice among them."""
    points = np.random.default_rng(seed).integers(0, LATTICE, (n, 2)).astype(np.int32)
    points[0], points[-1] = 0, LATTICE - 1
    return points
