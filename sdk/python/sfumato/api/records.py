"""Calls that upload, count and delete records of central datasets."""

import codecs
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sfumato.api import parsers
from sfumato.api.resources import AttributeCounts, RecordCounts, RecordUpload
from sfumato.errors import ApiProblem, InvalidSpec, Unreachable
from sfumato.records.inputs import Numbers, Records, is_missing, list_values, named_columns, to_numbers, to_values
from sfumato.records.mixed import SURROGATES, to_cells
from sfumato.specs.missing import is_missing_text
from sfumato.transport.exchange import Request, Steps, choose_idempotency_key, delete, get
from sfumato.transport.operations import call

PART_BYTES = 16 << 20  # size of an upload's part, which is kept in memory for retries

ProgressCallback = Callable[[int], None]
_COMPARED_PER_SECOND = 100_000  # records, with a busy service: the last part is compared with all stored records
Part = tuple[bytes, int]  # a body, and the records or bytes of the file up to its end

_CSV = "text/csv"
_NPY = "application/x-npy"
_ARROW = "application/vnd.apache.arrow.stream"
_RECORD = re.compile(r"^record (\d+)(?=: )")  # start of an error about one record, numbered within its part


class Target(NamedTuple):
    """The dataset that receives an upload, and what it accepts."""

    dataset_id: str
    allow_duplicates: bool
    accept_clipping: bool
    remedy: str = "repeat the call"  # stores the records once if no response came

    @property
    def params(self) -> dict[str, str]:
        """Return the query parameters."""
        return {name: "true" for name in ("allow_duplicates", "accept_clipping") if getattr(self, name)}


class RecordCalls:
    """The calls for records. They need a key with the scope `records`.

    An upload is stored completely or not at all. A large one is sent in parts, which count when the
    last one is stored.
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
        accept_clipping: bool = False,
        idempotency_key: str | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Steps[RecordUpload]:
        """Append records to a central dataset.

        The records are stored completely or not at all. Within a day, an upload with the same
        `idempotency_key` is not stored again.

        Parameters
        ----------
        records : array-like of shape (n, n_features)
            Finite, in the features' units. The columns of a data frame, a table, a mapping or a list of
            named rows are matched by name; there may also be a column of the `user_feature`. A dataset with
            attributes needs their columns, with None, NaN or an empty text for a missing value. An
            array, or a list of rows without names, is assumed to have the features' order.
        users : sequence of n str or int, optional
            User of each record, if the dataset has a `user_feature`: text or a whole number, at most
            64 bytes. The default is the column of that name.
        allow_duplicates : bool
            Store records that the dataset already has in an upload.
        accept_clipping : bool
            Store the records even if more than half of them are outside of the bounds and are clipped.
        idempotency_key : str, optional
            Key to repeat an upload after a crash of the caller. The default is random.
        on_progress : callable, optional
            Function that receives the number of sent records after each part of about 16 MiB.

        Returns
        -------
        RecordUpload
            Id, counts and warnings.

        Raises
        ------
        InvalidPoint
            The array has another shape or other columns, or a value is not finite. Nothing was sent.
        InvalidSpec
            The number of users differs from that of records, a user is missing or neither text nor a
            whole number, or the dataset has no `user_feature`. Nothing was sent.
        Unreachable
            No response came. The records may be stored. The message states the `idempotency_key` with which
            a repeated call stores them once.
        ApiProblem
            The code is `duplicate_content` if the dataset has nearly all of these records, unless
            `allow_duplicates`. It is `mostly_clipped` if more than half of the records are outside of
            the bounds, unless `accept_clipping`.

        Examples
        --------
        >>> from sfumato import Client, Feature
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=1, trust="central")
        ...     client.upload_records(dataset.id, [[2.5], [3.5], [9.0]]).n_records
        3
        """
        if isinstance(records, str | bytes | PathLike) or hasattr(records, "read"):
            raise InvalidSpec("records must be an array or a table: send a file with upload_file")
        key = choose_idempotency_key(idempotency_key)
        target = Target(dataset_id, allow_duplicates, accept_clipping, f"repeat the call with idempotency_key={key!r}")
        columns, described = named_columns(records), dict[str, list[str]]()
        if columns is None:
            array = to_numbers(records)
        else:
            dataset = (yield get(f"datasets/{dataset_id}")).read(parsers.parse_dataset)
            if users is None and dataset.user_feature is not None:
                if dataset.user_feature not in columns:
                    raise InvalidSpec(
                        f"the records have no column {dataset.user_feature}, which names the user of each record: "
                        "add it, or pass users"
                    )
                users = columns.pop(dataset.user_feature)
            described = {each.name: to_cells(each, columns.pop(each.name, None)) for each in dataset.attributes}
            array = to_values(dataset.features, columns)
            if any(len(cells) != len(array) for cells in described.values()):
                raise InvalidSpec(f"the columns {', '.join(described)} must have one value for each record")
        if users is None and not described:
            parts = _npy_parts(array)
            try:
                return (yield from _upload(target, _NPY, parts, key, on_progress))
            except ApiProblem as error:
                if error.code != "unsupported_media_type":
                    raise
                raise InvalidSpec(
                    "this dataset needs the user or the attributes of each record: pass a table with their columns, "
                    "or for the users alone pass users"
                ) from None
        ids = None if users is None else to_user_ids(users)
        if ids is not None and len(ids) != len(array):
            raise InvalidSpec(f"users must have one entry for each record; got {len(ids)} for {len(array)} records")
        dataset = (yield get(f"datasets/{dataset_id}")).read(parsers.parse_dataset)
        if ids is not None and dataset.user_feature is None:
            raise InvalidSpec("this dataset has no user_feature")
        if len(described) < len(dataset.attributes):
            raise InvalidSpec("this dataset has attributes: pass a table with named columns in place of an array")
        others = described | ({} if ids is None else {str(dataset.user_feature): ids})
        header = [*(feature.name for feature in dataset.features), *others]
        parts = _csv_parts(header, array, list(others.values()))
        return (yield from _upload(target, _CSV, parts, key, on_progress))

    @call
    def upload_file(
        self,
        dataset_id: str,
        path: str | Path,
        *,
        allow_duplicates: bool = False,
        accept_clipping: bool = False,
        idempotency_key: str | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Steps[RecordUpload]:
        """Append the records of a file: CSV with a header row, NPY, or Arrow.

        The records are stored completely or not at all. By default, the idempotency key is a hash of
        the dataset and the file with the client's key. The same file sent again within a day is
        therefore stored once, and continues an interrupted upload. Later, or with another key, it is
        rejected with the code `duplicate_content`. Deleting the dataset's records also deletes these
        keys.

        Parameters
        ----------
        path : str or Path
            `*.csv`, `*.npy`, or `*.arrow`, `*.arrows`, `*.feather`: an Arrow file or stream.
        allow_duplicates : bool
            Store the file a second time. A repetition of this call within a day stores nothing.
        accept_clipping : bool
            Store the records even if more than half of them are outside of the bounds and are clipped.
        idempotency_key : str, optional
            Key for this content of the file.
        on_progress : callable, optional
            Function that receives the number of sent bytes of the file after each part of about 16 MiB.

        Raises
        ------
        InvalidSpec
            The file has another format, or `path` is no path.
        """
        path = _read_path(path)
        target = Target(dataset_id, allow_duplicates, accept_clipping)
        kind = path.suffix.lower()
        if kind not in (".csv", ".npy", ".arrow", ".arrows", ".feather"):
            raise InvalidSpec("unknown file format. Use .csv, .npy, .arrow, .arrows or .feather.")
        key = choose_idempotency_key(idempotency_key or self._key_of(target, path))
        if kind == ".npy":
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, EOFError):
                raise InvalidSpec("this is not an NPY file of numbers") from None
            if array.ndim != 2 or array.dtype not in (np.float64, np.float32):
                raise InvalidSpec("the array must have dtype float64 or float32 and shape (n, n_features)")
            width = array.dtype.itemsize * array.shape[1]
            parts = ((body, at * width) for body, at in _npy_parts(array))
            return (yield from _upload(target, _NPY, parts, key, on_progress))
        if kind == ".csv":
            with path.open("rb") as file:
                return (yield from _upload(target, _CSV, _lines_in_parts(file), key, on_progress))
        whole = path.read_bytes()
        return (yield from _upload(target, _ARROW, iter([(whole, len(whole))]), key, on_progress))

    @call
    def count_records(self, dataset_id: str) -> Steps[RecordCounts]:
        """Return the numbers of records, uploads and users, which are private."""
        return (yield get(f"datasets/{dataset_id}/records")).read(parsers.parse_record_counts)

    @call
    def delete_records(
        self, dataset_id: str, *, user: str | int | None = None, everything: bool = False
    ) -> Steps[None]:
        """Delete the records of one user, or with `everything` all records and their encryption key.

        The dataset, its ledger and released results remain. The outcome is the same whether or not the
        user had records. The audit trail does not name the user.

        Parameters
        ----------
        user : str or int, optional
            Id of the user, in any spelling that an upload accepts for this user.
        everything : bool
            Delete the records of all users.

        Raises
        ------
        InvalidSpec
            Neither or both of `user` and `everything` are given. Nothing was deleted.
        """
        if (user is None) != everything:
            raise InvalidSpec("pass either the user whose records to delete, or everything=True")
        params = {"all": "true"} if user is None else {"user": str(user)}
        yield replace(delete(f"datasets/{dataset_id}/records"), params=params)

    def _key_of(self, target: Target, path: Path) -> str:
        again = ("again|" if target.allow_duplicates else "") + ("clipped|" if target.accept_clipping else "")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        return str(self._http.keyed_digest(f"sfumato file|{target.dataset_id}|{again}".encode() + content))


def _read_path(path: Any) -> Path:
    """Return the path of a file. Raise InvalidSpec for content in its place."""
    if not isinstance(path, str | PathLike):
        raise InvalidSpec(
            f"path must be the path of a file; got {type(path).__name__}: send an array or a table with upload_records"
        )
    if "\n" in str(path):
        raise InvalidSpec("path must be the path of a file; got text with several lines: write it to a file first")
    return Path(path)


def _upload(
    target: Target, kind: str, parts: Iterator[Part], key: str, on_progress: ProgressCallback | None
) -> Steps[RecordUpload]:
    """Send an upload: as one request, or in parts that count when the last one is stored."""
    path = f"datasets/{target.dataset_id}/records"
    stored = list[RecordUpload]()
    part = next(parts)
    while True:
        body, done = part
        following = next(parts, None)
        headers, params = {"Content-Type": kind}, target.params
        if not stored and following is None:
            headers["Idempotency-Key"] = key
        else:
            name = hashlib.sha256(key.encode()).hexdigest()
            params |= {"upload": name, "part": str(len(stored) + 1), "last": str(following is None).lower()}
        n_before, is_whole = sum(each.n_records for each in stored), following is None
        seconds = n_before / _COMPARED_PER_SECOND if is_whole else 0.0
        try:
            response = yield Request("POST", path, content=body, headers=headers, params=params, extra_seconds=seconds)
        except ApiProblem as error:
            raise _renumber(error, n_before) from None
        except Unreachable as error:
            fault = (
                "the records may be stored" if is_whole else "the upload is incomplete, and none of its records count"
            )
            raise Unreachable(f"{error}; {fault}: {target.remedy}, which stores them once") from None
        stored.append(response.read(parsers.parse_record_upload))
        if on_progress is not None:
            on_progress(done)
        if following is None:
            return RecordUpload(
                stored[0].id,
                n_records=sum(each.n_records for each in stored),
                n_clipped=sum(each.n_clipped for each in stored),
                n_zeros=sum(each.n_zeros for each in stored),
                n_constant=min(each.n_constant for each in stored),
                n_lacking=stored[-1].n_lacking,
                n_repeated=stored[-1].n_repeated,
                warnings=stored[-1].warnings,
                attributes=_add_counts(stored),
            )
        part = following


def _renumber(error: ApiProblem, n_before: int) -> ApiProblem:
    """Return the error with the numbers of records in the whole upload."""
    if not n_before:
        return error

    def renumber(text: Any) -> str:
        return _RECORD.sub(lambda match: f"record {n_before + int(match[1])}", str(text))

    problem = error.problem | {"detail": renumber(error.problem.get("detail") or error.problem.get("title"))}
    if isinstance(errors := problem.get("errors"), list):
        problem["errors"] = [
            each | {"message": renumber(each.get("message"))} for each in errors if isinstance(each, dict)
        ]
    return ApiProblem(error.status, problem)


def to_user_ids(users: Any) -> list[str]:
    """Return the ids of users as text. Raise InvalidSpec if one is missing, or neither text nor a whole number."""
    if isinstance(users, str | bytes | Set | Mapping):
        raise InvalidSpec(f"users must be a list or column of ids; got {type(users).__name__}")
    return [_user_id(user, place) for place, user in enumerate(list_values(users), 1)]


def _user_id(user: object, place: int) -> str:
    where = f"record {place} (counted from 1)"
    if is_missing(user) or (isinstance(user, str | int | np.integer) and is_missing_text(str(user))):
        raise InvalidSpec(f"{where} has no user; nothing was sent. Give each record a user.")
    if isinstance(user, str) and not SURROGATES.search(user):
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


def _add_counts(stored: list[RecordUpload]) -> tuple[AttributeCounts, ...]:
    """Return the counts of the attributes over all parts of an upload."""
    return tuple(
        AttributeCounts(
            of_parts[0].name,
            sum(each.n_other for each in of_parts),
            sum(each.n_missing for each in of_parts),
            sum(each.n_outside for each in of_parts),
        )
        for of_parts in zip(*(each.attributes for each in stored), strict=True)
    )


def _csv_parts(header: list[str], array: Numbers, others: Sequence[Sequence[str]]) -> Iterator[Part]:
    """Yield bodies with the features and columns of text."""
    step = max(1, PART_BYTES // (25 * (array.shape[1] + len(others))))  # a number has at most 25 characters as text
    for start in range(0, max(1, len(array)), step):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        part = array[start : start + step].tolist()
        texts = zip(*(each[start : start + step] for each in others), strict=True)
        writer.writerows([*row, *cells] for row, cells in zip(part, texts, strict=True))
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
