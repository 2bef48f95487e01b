"""The client's calls for records of central datasets: uploaded in parts, counted, deleted."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato import resources
from sfumato._exchange import Ask, Steps, delete, fresh_key, get
from sfumato._operations import call
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec, Unreachable
from sfumato.resources import RecordCounts, RecordUpload

PART_BYTES = 16 << 20  # a part of an upload: kept while it is sent, and sent again as it was

Progress = Callable[[int], None]
Part = tuple[bytes, int]  # a body, and how far it gets: records, or bytes of a file
KeyOf = Callable[[int, bytes], str]  # the idempotency key of a part, by its place and its body

Numbers = NDArray[np.float64] | NDArray[np.float32]

_CSV = "text/csv"
_NPY = "application/x-npy"
_ARROW = "application/vnd.apache.arrow.stream"
_RECORD = re.compile(r"^record (\d+)(?=: )")  # as a refusal begins that names one, counted within its part
_NOTHING_STORED = "; nothing of the upload was stored"


class RecordCalls:
    """What a client can do with records. Needs a key with the scope `records`.

    Where a part of an upload is refused or gets no answer, the error says how much of it is
    stored already, and names a record by its place in the whole.
    """

    _http: Any  # the pool of the client it is part of

    @call
    def upload_records(
        self,
        dataset_id: str,
        records: ArrayLike,
        *,
        users: Sequence[str | int] | None = None,
        idempotency_key: str | None = None,
        on_progress: Progress | None = None,
    ) -> Steps[RecordUpload]:
        """Append records to a central dataset.

        They go in parts of some 16 MiB, each stored whole or not at all. With the same
        `idempotency_key` what was stored already is not stored again (within a day); with
        another one, or without, it is appended a second time.

        Parameters
        ----------
        records : array-like of shape (n, n_features)
            In the features' units and order; finite.
        users : sequence of n str or int, optional
            Whose each record is, where the dataset has a `user_feature`; at most 64 bytes.
        idempotency_key : str, optional
            Yours, where an upload is to go on after a crash of your own; a fresh one by default.
        on_progress : callable, optional
            Told how many records are stored so far, after each part.

        Returns
        -------
        RecordUpload
            Of all parts together.

        Raises
        ------
        InvalidPoint
            Another shape, or a value that is not finite: nothing was sent.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=1, trust="central")
        ...     client.upload_records(dataset.id, [[2.5], [3.5], [9.0]]).n_records
        3
        """
        array = _numbers(records)
        if array.ndim != 2 or not np.isfinite(array).all():
            raise InvalidPoint("records are finite numbers in shape (n, n_features)")
        if users is None:
            parts = _npy_parts(array)
            return (yield from _upload(dataset_id, _NPY, parts, _numbered(idempotency_key), on_progress))
        if len(users) != len(array):
            raise InvalidSpec("there is one user for each record")
        dataset = (yield get(f"datasets/{dataset_id}")).read(resources.dataset)
        if dataset.user_feature is None:
            raise InvalidSpec("this dataset has no user_feature")
        header = [*(feature.name for feature in dataset.features), dataset.user_feature]
        parts = _csv_parts(header, array, users)
        return (yield from _upload(dataset_id, _CSV, parts, _numbered(idempotency_key), on_progress))

    @call
    def upload_file(
        self,
        dataset_id: str,
        path: Path,
        *,
        idempotency_key: str | None = None,
        on_progress: Progress | None = None,
    ) -> Steps[RecordUpload]:
        """Append the records of a file: CSV with a header row, NPY (both in parts), or an Arrow stream.

        By default each part has an idempotency key made of the dataset, its place and what is
        in it, hashed with the client's key. So the same file sent again within a day is stored
        once, and a file that was mended after a refusal goes on where it stopped. Deleting the
        dataset's records forgets these keys.

        Parameters
        ----------
        path : Path
            `*.csv`, `*.npy`, or `*.arrow`, `*.arrows`.
        idempotency_key : str, optional
            Yours, for the file as it is: under another one it is appended a second time.
        on_progress : callable, optional
            Told how many bytes of the file are stored so far, after each part.

        Raises
        ------
        InvalidSpec
            A file of another kind.
        """
        key_of = _numbered(idempotency_key) if idempotency_key else partial(self._key_of, dataset_id)
        kind = path.suffix.lower()
        if kind == ".npy":
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except ValueError:
                raise InvalidSpec("this is no NPY file of numbers") from None
            if array.ndim != 2 or array.dtype not in (np.float64, np.float32):
                raise InvalidSpec("the array is of float64 or float32, in shape (n, n_features)")
            width = array.dtype.itemsize * array.shape[1]
            parts = ((body, at * width) for body, at in _npy_parts(array))
            return (yield from _upload(dataset_id, _NPY, parts, key_of, on_progress))
        if kind == ".csv":
            with path.open("rb") as file:
                return (yield from _upload(dataset_id, _CSV, _lines_in_parts(file), key_of, on_progress))
        if kind in (".arrow", ".arrows"):
            whole = path.read_bytes()
            return (yield from _upload(dataset_id, _ARROW, iter([(whole, len(whole))]), key_of, on_progress))
        raise InvalidSpec("records come in files .csv, .npy or .arrow")

    @call
    def count_records(self, dataset_id: str) -> Steps[RecordCounts]:
        """How many records, uploads and users there are: private, for keys with the scope `records` alone."""
        return (yield get(f"datasets/{dataset_id}/records")).read(resources.record_counts)

    @call
    def delete_records(self, dataset_id: str) -> Steps[None]:
        """Remove all records of a dataset and the key that opens them; the dataset and its ledger stay."""
        yield delete(f"datasets/{dataset_id}/records")

    def _key_of(self, dataset_id: str, index: int, body: bytes) -> str:
        return str(self._http.keyed_digest(f"sfumato part|{dataset_id}|{index}|".encode() + body))


def _upload(
    dataset_id: str, kind: str, parts: Iterator[Part], key_of: KeyOf, on_progress: Progress | None
) -> Steps[RecordUpload]:
    ids: list[str] = []
    n_records = n_clipped = 0
    for index, (body, done) in enumerate(parts):
        headers = {"Content-Type": kind, "Idempotency-Key": key_of(index, body)}
        try:
            answer = yield Ask("POST", f"datasets/{dataset_id}/records", content=body, headers=headers)
        except (ApiProblem, Unreachable) as error:
            if index == 0:
                raise
            raise _halfway(error, index, n_records) from None
        stored = answer.read(resources.record_upload)
        ids += stored.ids
        n_records, n_clipped = n_records + stored.n_records, n_clipped + stored.n_clipped
        if on_progress is not None:
            on_progress(done)
    return RecordUpload(tuple(ids), n_records, n_clipped)


def _numbered(key: str | None) -> KeyOf:
    """Keys by place alone, of one that was given or is fresh."""
    base = key or fresh_key()
    return lambda index, _: f"{base}.{index}"


def _halfway(error: ApiProblem | Unreachable, n_parts: int, n_records: int) -> ApiProblem | Unreachable:
    """The error as it is for the whole, of which so many parts and records are stored."""
    stored = f"{n_records} records before it are stored, in {n_parts} part{'s' * (n_parts > 1)}"
    if isinstance(error, Unreachable):
        return Unreachable(f"{error}; {stored}, and its part may be")

    def said(text: Any) -> str:
        placed = _RECORD.sub(lambda found: f"record {n_records + int(found[1])}", str(text))
        return placed.removesuffix(_NOTHING_STORED) + f"; nothing of its part was stored; {stored}"

    problem = error.problem | {"detail": said(error.problem.get("detail") or error.problem.get("title"))}
    if isinstance(errors := problem.get("errors"), list):
        problem["errors"] = [each | {"message": said(each.get("message"))} for each in errors if isinstance(each, dict)]
    return ApiProblem(error.status, problem)


def _numbers(records: ArrayLike) -> Numbers:
    try:
        array = np.asarray(records)
        return array.astype("<f4" if array.dtype == np.float32 else "<f8", copy=False)
    except (TypeError, ValueError, OverflowError):  # whose message would quote a value
        raise InvalidPoint("records are finite numbers in shape (n, n_features)") from None


def _npy_parts(array: Numbers) -> Iterator[Part]:
    step = max(1, PART_BYTES // max(1, array.dtype.itemsize * array.shape[1]))
    for start in range(0, max(1, len(array)), step):
        part = np.ascontiguousarray(array[start : start + step])
        file = io.BytesIO()
        np.lib.format.write_array(file, part, version=(1, 0), allow_pickle=False)
        yield file.getvalue(), start + len(part)


def _csv_parts(header: list[str], array: Numbers, users: Sequence[str | int]) -> Iterator[Part]:
    step = max(1, PART_BYTES // (25 * (array.shape[1] + 1)))  # a number as text takes 25 characters at most
    for start in range(0, max(1, len(array)), step):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        part = array[start : start + step].tolist()
        writer.writerows([*row, user] for row, user in zip(part, users[start : start + step], strict=True))
        yield text.getvalue().encode(), start + len(part)


def _lines_in_parts(file: BinaryIO) -> Iterator[Part]:
    """Bodies of whole lines, each beginning with the file's header."""
    header = file.readline()
    done = len(header)
    while True:
        lines = file.readlines(PART_BYTES)
        if not lines and done > len(header):
            return
        done += sum(map(len, lines))
        yield b"".join([header, *lines]), done
        if not lines:
            return
