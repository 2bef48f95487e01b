"""Deletion of one person's records from encrypted segments.

The work depends on the number of stored records, and hardly on whether the person has any: all segments are decrypted
and searched, and at least one is encrypted again. Restored backups contain the records again.
"""

import hmac
from hashlib import sha256
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from models import encryption
from models.database.types import SCRUBBED
from models.records.record_keys import DataKey
from models.records.records import MAX_SEGMENTS, content_of, new_hashes
from models.records.segments import PSEUDONYM_BYTES, belongs_to, record_bytes, unseal
from models.tables.datasets import Dataset, RecordSegment

Place = tuple[str, int]  # upload id and index of a segment
Octets = NDArray[np.uint8]


def remove_person(session: Session, dataset: Dataset, key: DataKey, user: bytes) -> None:
    """Delete the records of one user, also those of incomplete uploads. The caller has locked the dataset's row.

    The keyed hashes by which repeated uploads are recognised are computed again from the remaining records.
    Memory: one segment.

    Parameters
    ----------
    user : bytes
        Normalised id. The dataset has a user column.

    Raises
    ------
    RecordsUnreadable
        If a segment was changed or belongs to another dataset. Nothing is deleted.
    """
    pseudonym = np.frombuffer(hmac.digest(key.pseudonyms, user, sha256)[:PSEUDONYM_BYTES], dtype=np.uint8)
    query = select(RecordSegment.upload_id, RecordSegment.index).where(RecordSegment.dataset_id == dataset.id)
    rows = session.execute(query.order_by(RecordSegment.upload_id, RecordSegment.index))
    places: list[Place] = [(upload_id, index) for upload_id, index in rows]
    has_written = False
    for (upload_id, _), members in groupby(places, lambda place: (place[0], place[1] // MAX_SEGMENTS)):
        hashes, has_changed = new_hashes(key), False
        indices = [index for _, index in members]
        for index in indices:
            is_last = (upload_id, index) == places[-1]
            points, users, kept = _read(session, dataset, key, (upload_id, index), pseudonym)
            if not kept.all() or (is_last and not has_written):
                _write(session, dataset, key, (upload_id, index), points[kept].tobytes() + users[kept].tobytes(), kept)
                has_written = True
            has_changed |= not kept.all()
            hashes[0].update(points[kept].tobytes())
            hashes[1].update(users[kept].tobytes())
        if has_changed:
            first = indices[0]
            _update(session, dataset, (upload_id, first), content=content_of(key, hashes))
    session.info[SCRUBBED] = True


def _read(
    session: Session,
    dataset: Dataset,
    key: DataKey,
    place: Place,
    pseudonym: Octets,
) -> tuple[Octets, Octets, NDArray[np.bool_]]:
    """Return the points and the pseudonyms of a segment, each as rows of octets, and a mask of the rows to keep."""
    columns = select(RecordSegment.n_records, RecordSegment.sealed).where(*_at(dataset, place))
    n_records, sealed = session.execute(columns).one()
    plain = unseal(dataset, key, place, n_records, sealed)
    width = record_bytes(dataset.n_columns, with_user=False)
    octets = np.frombuffer(plain, dtype=np.uint8) if plain else np.empty(0, dtype=np.uint8)
    points = octets[: n_records * width].reshape(n_records, width)
    users = octets[n_records * width :].reshape(n_records, PSEUDONYM_BYTES)
    return points, users, (users != pseudonym).any(axis=1)


def _write(
    session: Session,
    dataset: Dataset,
    key: DataKey,
    place: Place,
    plain: bytes,
    kept: NDArray[np.bool_],
) -> None:
    n_records = int(kept.sum())
    sealed = encryption.seal(key.records, plain, belongs_to(dataset.id, key.id, *place, n_records))
    n_clipped = session.execute(select(RecordSegment.n_clipped).where(*_at(dataset, place))).scalar_one()
    _update(session, dataset, place, sealed=sealed, n_records=n_records, n_clipped=min(n_clipped, n_records))


def _update(session: Session, dataset: Dataset, place: Place, **values: object) -> None:
    session.execute(
        update(RecordSegment).where(*_at(dataset, place)).values(**values).execution_options(synchronize_session=False)
    )


def _at(dataset: Dataset, place: Place) -> tuple[ColumnElement[bool], ...]:
    return RecordSegment.dataset_id == dataset.id, RecordSegment.upload_id == place[0], RecordSegment.index == place[1]
