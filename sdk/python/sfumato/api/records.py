"""Calls that upload, count and delete records of central datasets."""

import codecs
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sfumato.api import resources
from sfumato.api.resources import RecordCounts, RecordUpload
from sfumato.errors import ApiProblem, InvalidSpec, Unreachable
from sfumato.mechanisms.inputs import Numbers, Records, is_missing, named_columns, to_numbers, to_values
from sfumato.transport.exchange import Request, Steps, delete, get, random_idempotency_key
from sfumato.transport.operations import call

PART_BYTES = 16 << 20  # size of an upload's part, which is kept in memory for retries

ProgressCallback = Callable[[int], None]
Part = tuple[bytes, int]  # a body, and the records or bytes of the file up to its end
KeyFunction = Callable[[int, bytes], str]  # returns a part's idempotency key from its index and body

_CSV = "text/csv"
_NPY = "application/x-npy"
_ARROW = "application/vnd.apache.arrow.stream"
_RECORD = re.compile(r"^record (\d+)(?=: )")  # start of an error about one record, numbered within its part
_SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters, which UTF-8 cannot encode
_NOTHING_STORED = "; nothing of the upload was stored"


class Target(NamedTuple):
    """The dataset that receives an upload, and whether it may already have the records."""

    dataset_id: str
    allow_duplicates: bool


class RecordCalls:
    """The calls for records. They need a key with the scope `records`.

    If the service rejects a part of an upload or does not answer, the error states how many
    records are stored, and gives a record's index in the whole upload.
    """

    _http: Any  # the client's connection pool

    @call
    def upload_records(
        self,
        dataset_id: str,
        records: Records,
        *,
        users: Sequence[str | int] | ArrayLike | None = None,
        allow_duplicates: bool = False,
        idempotency_key: str | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Steps[RecordUpload]:
        """Append records to a central dataset.

        The client sends parts of about 16 MiB. Each part is stored completely or not at all. Within
        a day, a part with the same `idempotency_key` is not stored again.

        Parameters
        ----------
        records : array-like of shape (n, n_features)
            Finite, in the features' units. The columns of a data frame, a table, a mapping or a list of
            named rows are matched by name; there may also be a column of the `user_feature`. An
            array, or a list of rows without names, is assumed to have the features' order.
        users : sequence of n str or int, optional
            User of each record, if the dataset has a `user_feature`: text or a whole number, at most
            64 bytes. The default is the column of that name.
        allow_duplicates : bool
            Store records that the dataset already has in an upload.
        idempotency_key : str, optional
            Key to continue an upload after a crash of the caller. The default is random.
        on_progress : callable, optional
            Function that receives the number of stored records after each part.

        Returns
        -------
        RecordUpload
            Ids and counts of all parts.

        Raises
        ------
        InvalidPoint
            The array has another shape or other columns, or a value is not finite. Nothing was sent.
        InvalidSpec
            The number of users differs from that of records, a user is missing or neither text nor a
            whole number, or the dataset has no `user_feature`. Nothing was sent.
        ApiProblem
            The code is `duplicate_content` if a part is already stored, unless `allow_duplicates`.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=1, trust="central")
        ...     client.upload_records(dataset.id, [[2.5], [3.5], [9.0]]).n_records
        3
        """
        target = Target(dataset_id, allow_duplicates)
        columns = named_columns(records)
        if columns is None:
            array = to_numbers(records)
        else:
            dataset = (yield get(f"datasets/{dataset_id}")).read(resources.parse_dataset)
            if users is None and dataset.user_feature is not None:
                users = columns.pop(dataset.user_feature, None)
            array = to_values(dataset.features, columns)
        if users is None:
            parts = _npy_parts(array)
            return (yield from _upload(target, _NPY, parts, _numbered_keys(idempotency_key), on_progress))
        ids = to_user_ids(users)
        if len(ids) != len(array):
            raise InvalidSpec(f"users must have one entry for each record; got {len(ids)} for {len(array)} records")
        dataset = (yield get(f"datasets/{dataset_id}")).read(resources.parse_dataset)
        if dataset.user_feature is None:
            raise InvalidSpec("this dataset has no user_feature")
        header = [*(feature.name for feature in dataset.features), dataset.user_feature]
        parts = _csv_parts(header, array, ids)
        return (yield from _upload(target, _CSV, parts, _numbered_keys(idempotency_key), on_progress))

    @call
    def upload_file(
        self,
        dataset_id: str,
        path: Path,
        *,
        allow_duplicates: bool = False,
        idempotency_key: str | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Steps[RecordUpload]:
        """Append the records of a file: CSV with a header row, NPY, or Arrow. CSV and NPY are sent in parts.

        By default, each part's idempotency key is a hash of the dataset, its index and its content
        with the client's key. The same file sent again within a day is therefore stored once, and
        a file that was corrected after an error continues at the rejected part. Later, or with
        another key, a stored part is rejected with the code `duplicate_content`. Deleting the
        dataset's records also deletes these keys.

        Parameters
        ----------
        path : Path
            `*.csv`, `*.npy`, or `*.arrow`, `*.arrows`, `*.feather`: an Arrow file or stream.
        allow_duplicates : bool
            Store the file a second time. A repetition of this call within a day stores nothing.
        idempotency_key : str, optional
            Key for this content of the file.
        on_progress : callable, optional
            Function that receives the number of stored bytes of the file after each part.

        Raises
        ------
        InvalidSpec
            The file has another format.
        """
        target = Target(dataset_id, allow_duplicates)
        key_of = _numbered_keys(idempotency_key) if idempotency_key else partial(self._key_of, target)
        kind = path.suffix.lower()
        if kind == ".npy":
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except ValueError:
                raise InvalidSpec("this is not an NPY file of numbers") from None
            if array.ndim != 2 or array.dtype not in (np.float64, np.float32):
                raise InvalidSpec("the array must have dtype float64 or float32 and shape (n, n_features)")
            width = array.dtype.itemsize * array.shape[1]
            parts = ((body, at * width) for body, at in _npy_parts(array))
            return (yield from _upload(target, _NPY, parts, key_of, on_progress))
        if kind == ".csv":
            with path.open("rb") as file:
                return (yield from _upload(target, _CSV, _lines_in_parts(file), key_of, on_progress))
        if kind in (".arrow", ".arrows", ".feather"):
            whole = path.read_bytes()
            return (yield from _upload(target, _ARROW, iter([(whole, len(whole))]), key_of, on_progress))
        raise InvalidSpec("unknown file format. Use .csv, .npy, .arrow, .arrows or .feather.")

    @call
    def count_records(self, dataset_id: str) -> Steps[RecordCounts]:
        """Return the numbers of records, uploads and users, which are private."""
        return (yield get(f"datasets/{dataset_id}/records")).read(resources.parse_record_counts)

    @call
    def delete_records(self, dataset_id: str) -> Steps[None]:
        """Delete all records of a dataset and their encryption key. The dataset and its ledger remain."""
        yield delete(f"datasets/{dataset_id}/records")

    def _key_of(self, target: Target, index: int, body: bytes) -> str:
        again = "again|" if target.allow_duplicates else ""
        return str(self._http.keyed_digest(f"sfumato part|{target.dataset_id}|{again}{index}|".encode() + body))


def _upload(
    target: Target, kind: str, parts: Iterator[Part], key_of: KeyFunction, on_progress: ProgressCallback | None
) -> Steps[RecordUpload]:
    path = f"datasets/{target.dataset_id}/records"
    total, sent = RecordUpload((), 0, 0), set[bytes]()
    for index, (body, done) in enumerate(parts):
        headers = {"Content-Type": kind, "Idempotency-Key": key_of(index, body)}
        digest = hashlib.sha256(body).digest()
        is_allowed = target.allow_duplicates or digest in sent  # parts of one file may be equal
        params = {"allow_duplicates": "true"} if is_allowed else {}
        sent.add(digest)
        try:
            response = yield Request("POST", path, content=body, headers=headers, params=params)
        except (ApiProblem, Unreachable) as error:
            if index == 0:
                raise
            raise _add_progress(error, index, total.n_records) from None
        stored = response.read(resources.parse_record_upload)
        total = RecordUpload(
            total.ids + stored.ids,
            total.n_records + stored.n_records,
            total.n_clipped + stored.n_clipped,
            total.n_zeros + stored.n_zeros,
            min(total.n_constant, stored.n_constant) if index else stored.n_constant,
        )
        if on_progress is not None:
            on_progress(done)
    return total


def _numbered_keys(key: str | None) -> KeyFunction:
    """Return keys that depend on the part's index alone. The default base is random."""
    base = key or random_idempotency_key()
    return lambda index, _: f"{base}.{index}"


def _add_progress(error: ApiProblem | Unreachable, n_parts: int, n_records: int) -> ApiProblem | Unreachable:
    """Return the error for the whole upload, with the numbers of stored parts and records."""
    stored = f"{n_records} records before it are stored, in {n_parts} part{'s' * (n_parts > 1)}"
    if isinstance(error, Unreachable):
        return Unreachable(f"{error}; {stored}. The part itself may be stored.")

    def describe(text: Any) -> str:
        renumbered = _RECORD.sub(lambda match: f"record {n_records + int(match[1])}", str(text))
        return renumbered.removesuffix(_NOTHING_STORED) + f"; nothing of its part was stored; {stored}"

    problem = error.problem | {"detail": describe(error.problem.get("detail") or error.problem.get("title"))}
    if isinstance(errors := problem.get("errors"), list):
        problem["errors"] = [
            each | {"message": describe(each.get("message"))} for each in errors if isinstance(each, dict)
        ]
    return ApiProblem(error.status, problem)


def to_user_ids(users: Any) -> list[str]:
    """Return the ids of users as text. Raise InvalidSpec if one is missing, or neither text nor a whole number."""
    if isinstance(users, str | bytes | Set | Mapping):
        raise InvalidSpec(f"users must be a list or column of ids; got {type(users).__name__}")
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow; pandas and polars; numpy
        if hasattr(users, method):
            users = getattr(users, method)()
            break
    return [_user_id(user, place) for place, user in enumerate(users, 1)]


def _user_id(user: object, place: int) -> str:
    where = f"record {place} (counted from 1)"
    if is_missing(user) or user == "":
        raise InvalidSpec(f"{where} has no user; nothing was sent. Give each record a user.")
    if isinstance(user, str) and not _SURROGATES.search(user):
        return user
    if isinstance(user, int | np.integer) and not isinstance(user, bool | np.timedelta64):
        return str(int(user))
    kind = "text that is not Unicode" if isinstance(user, str) else type(user).__name__
    raise InvalidSpec(
        f"the user of {where} must be text or a whole number; got {kind}; nothing was sent. "
        "A column of whole numbers with a gap becomes float: fill the gap and convert the column."
    )


def _npy_parts(array: Numbers) -> Iterator[Part]:
    step = max(1, PART_BYTES // max(1, array.dtype.itemsize * array.shape[1]))
    for start in range(0, max(1, len(array)), step):
        part = np.ascontiguousarray(array[start : start + step])
        file = io.BytesIO()
        np.lib.format.write_array(file, part, version=(1, 0), allow_pickle=False)
        yield file.getvalue(), start + len(part)


def _csv_parts(header: list[str], array: Numbers, users: Sequence[str]) -> Iterator[Part]:
    step = max(1, PART_BYTES // (25 * (array.shape[1] + 1)))  # a number has at most 25 characters as text
    for start in range(0, max(1, len(array)), step):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        part = array[start : start + step].tolist()
        writer.writerows([*row, user] for row, user in zip(part, users[start : start + step], strict=True))
        yield text.getvalue().encode(), start + len(part)


def _lines_in_parts(file: BinaryIO) -> Iterator[Part]:
    """Yield bodies of whole lines. Each starts with the header of the file, which may follow empty lines."""
    header = file.readline()
    while header and not header.removeprefix(codecs.BOM_UTF8).strip(b"\r\n"):
        header = file.readline()
    is_first = True
    while (lines := file.readlines(PART_BYTES)) or is_first:
        yield b"".join([header, *lines]), file.tell()
        is_first = False
