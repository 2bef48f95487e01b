"""Records as they come in: columns found, values checked against the declared bounds, scaled, handed on.

What is refused names the record's place, from 0, and a declared column; never a value, and
no undeclared column by its name, since a file without a header has values there.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from models.dataset import Dataset, OutOfBounds
from models.record import Upload
from service.problems import PayloadTooLarge, ValidationFailed
from sfumato.encodings import cells, scale_many
from sfumato.specs import LATTICE

MAX_USER_BYTES = 64
_CHUNK_NUMBERS = 1 << 18  # checked and scaled at once: bounds memory
_MAX_NAMED = 5


class Intake:
    """Takes one upload's records.

    Parameters
    ----------
    dataset : Dataset
    upload : Upload
        Where they go.
    max_records : int
        Most that an upload may have.
    hold : callable
        Told how many bytes were sealed, or are held beside; raises where all uploads together hold too much.
    """

    def __init__(self, dataset: Dataset, upload: Upload, max_records: int, hold: Callable[[int], None]) -> None:
        self.features = dataset.features
        self.user_feature = dataset.user_feature
        self.upload = upload
        self._refuses = dataset.out_of_bounds == OutOfBounds.REFUSE
        self._max_records = max_records
        self.hold = hold
        self._lower = np.array([feature.lower for feature in self.features])
        self._upper = np.array([feature.upper for feature in self.features])

    @property
    def columns(self) -> list[str]:
        """Every declared column: the features in order, then the user's."""
        return [feature.name for feature in self.features] + [self.user_feature or ""][: bool(self.user_feature)]

    def places(self, given: Sequence[str]) -> list[int]:
        """Where each declared column is among the given ones.

        Raises
        ------
        ValidationFailed
            One is missing or there twice, or there are others.
        """
        declared = self.columns
        errors = [f"column {name} is missing" for name in declared if name not in given]
        errors += [f"column {name} is there more than once" for name in declared if given.count(name) > 1]
        others = [str(place + 1) for place, name in enumerate(given) if name not in declared]
        if others:
            shown = ", ".join(others[:_MAX_NAMED]) + (", ..." if len(others) > _MAX_NAMED else "")
            errors.append(f"not declared, counted from 1: column {shown}")
        if errors:
            raise ValidationFailed(errors=[{"pointer": "", "message": message} for message in errors])
        return [given.index(name) for name in declared]

    def add(self, values: NDArray[np.float64], users: Sequence[str | int] | None) -> None:
        """Take records.

        Parameters
        ----------
        values : ndarray of shape (n, n_features)
            In the features' units, NaN for what is no number.
        users : sequence of n str or int
            Whose they are; None where the dataset has no such column.

        Raises
        ------
        ValidationFailed
            With the place of the first record that cannot be taken, and why.
        PayloadTooLarge
            More than an upload may have.
        """
        if self.upload.n_records + len(values) > self._max_records:
            raise PayloadTooLarge(f"an upload takes {self._max_records} records")
        step = max(1, _CHUNK_NUMBERS // len(self.features))
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            self._add(values[part], None if users is None else users[part])

    def finish(self) -> Upload:
        """Seal what is left. Raises ValidationFailed where nothing came."""
        if self.upload.n_records == 0:
            raise ValidationFailed("no records were sent")
        before = self.upload.n_bytes
        self.upload.close()
        self.hold(self.upload.n_bytes - before)
        return self.upload

    def _add(self, values: NDArray[np.float64], users: Sequence[str | int] | None) -> None:
        outside = (values < self._lower) | (values > self._upper)
        bad = ~np.isfinite(values)
        if self._refuses:
            bad |= outside
        if bad.any():
            row = int(bad.any(axis=1).argmax())
            column = int(bad[row].argmax())
            why = "is outside of its bounds" if np.isfinite(values[row, column]) else "is not a finite number"
            raise bad_record(self.upload.n_records + row, f"{self.features[column].name} {why}")
        ids = None if users is None else self._ids(users)
        points = cells(scale_many(self.features, values), [LATTICE] * len(self.features))
        before = self.upload.n_bytes
        self.upload.add(points.astype(np.int32), ids, int(outside.any(axis=1).sum()))
        self.hold(self.upload.n_bytes - before)

    def _ids(self, users: Sequence[str | int]) -> list[bytes]:
        ids = [_id(user) for user in users]
        for row, one in enumerate(ids):
            if not 0 < len(one) <= MAX_USER_BYTES:
                raise bad_record(
                    self.upload.n_records + row, f"{self.user_feature} is empty or over {MAX_USER_BYTES} bytes"
                )
        return ids


def _id(user: str | int) -> bytes:
    """7, "7" and " 7" are one person, whatever form they came in; empty for what is no text."""
    try:
        return str(user).strip().encode()
    except ValueError:  # half a surrogate pair, thousands of digits
        return b""


def bad_record(index: int, why: str) -> ValidationFailed:
    """The refusal of an upload for one of its records."""
    return ValidationFailed(f"record {index}: {why} (records are counted from 0); nothing of the upload was stored")
