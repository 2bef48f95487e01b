"""Clipped records of an upload: how many there are, and which features have their values at a bound. Private.

The number is that of the validation, over all parts of an upload. The features follow from the stored values, so a
value that lay exactly at a bound counts with the clipped ones.
"""

from dataclasses import dataclass

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.errors import MostlyClipped
from models.records.known_records import earlier_parts, segments_of
from models.records.records import Upload
from models.records.segments import coordinates
from models.tables.datasets import Dataset, RecordSegment
from sfumato.specs import LATTICE

WARN_SHARE = 0.01
REFUSE_SHARE = 0.5

_MAX_LISTED = 5  # features


@dataclass(frozen=True, slots=True)
class Clipping:
    """The clipped records of a whole upload.

    Attributes
    ----------
    n_records, n_clipped : int
    warning : str
        Sentence for the uploader if more than `WARN_SHARE` of the records were clipped, else empty.
    """

    n_records: int
    n_clipped: int
    warning: str

    def check(self) -> None:
        """Raise MostlyClipped if more than half of the records were clipped."""
        if self.n_clipped > REFUSE_SHARE * self.n_records:
            raise MostlyClipped(
                f"{self.warning} Nothing was stored. Check the order and the units of the columns, and the bounds. "
                "Send accept_clipping=true to store the clipped values."
            )


def find_clipped(session: Session, dataset: Dataset, upload: Upload) -> Clipping:
    """Return the clipped records of a whole upload, or of one with its last part and all earlier parts.

    Memory: a few segments. The segments are read only if there is something to warn of.
    """
    upload.close()
    n_records, n_clipped = upload.n_records, upload.n_clipped
    if upload.part is not None:
        sums = func.coalesce(func.sum(RecordSegment.n_records), 0), func.coalesce(func.sum(RecordSegment.n_clipped), 0)
        n_earlier, n_clipped_earlier = session.execute(select(*sums).where(*earlier_parts(upload))).one()
        n_records, n_clipped = n_records + int(n_earlier), n_clipped + int(n_clipped_earlier)
    if n_clipped <= WARN_SHARE * n_records:
        return Clipping(n_records, n_clipped, "")
    if dataset.norm is not None:
        where = f"longer than the norm {dataset.norm:g} and were scaled down to it"
        return Clipping(n_records, n_clipped, f"{n_clipped:,} of {n_records:,} records were {where}.")
    at_bounds = np.zeros(dataset.n_features, dtype=np.int64)
    for plain, n in segments_of(session, upload):
        points = coordinates(plain, n, dataset.n_columns)[:, : dataset.n_features]
        at_bounds += ((points == 0) | (points == LATTICE - 1)).sum(axis=0)
    order = [
        place
        for place in np.argsort(-at_bounds, kind="stable")
        if at_bounds[place] and not dataset.features[place].periodic
    ]
    named = ", ".join(f"{at_bounds[place]:,} in {dataset.features[place].name}" for place in order[:_MAX_LISTED])
    more = f", and others in {len(order) - _MAX_LISTED} more features" if len(order) > _MAX_LISTED else ""
    text = f"{n_clipped:,} of {n_records:,} records were clipped to the bounds. Values at a bound: {named}{more}."
    return Clipping(n_records, n_clipped, text)
