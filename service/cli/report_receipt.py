"""The receipt of `sfumato report`: what was drawn for the rows of a file, so that no person reports to a round twice.

The receipt is a database beside the file, readable by its owner only. It contains the participation draws of each
collection, and the reports of a round until the service has acknowledged all of them. They are stored before the first
of them is sent, so that an interrupted run continues with the same bytes. The draws are as private as the file.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.private_files import prepare_sqlite_files
from sfumato.device.bulk import Reports, pack, unpack

SUFFIX = ".receipt"

_SCHEMA = """
create table if not exists collections (id text primary key, content blob not null, draws blob not null);
create table if not exists rounds (id text primary key, n_reports integer not null, reports blob);
"""


class ReceiptUnusable(Exception):
    """A receipt that cannot be used. The message contains a remedy and no value of the file."""


class Receipt:
    """The draws and reports of one file. Create it with `open_receipt`."""

    def __init__(self, connection: sqlite3.Connection, content: bytes) -> None:
        self._connection = connection
        self._content = content

    def get_draws(self, collection_id: str) -> NDArray[np.uint64] | None:
        """Return the stored draws of a collection, or None. Raise ReceiptUnusable if the file was changed since."""
        row = self._connection.execute(
            "select content, draws from collections where id = ?", [collection_id]
        ).fetchone()
        if row is None:
            return None
        if row[0] != self._content:
            raise ReceiptUnusable(
                "the file was changed after reports of its rows were drawn for this collection; nothing was sent. "
                "Restore the file, and put new rows into a file of their own."
            )
        return np.frombuffer(row[1], dtype="<u8").astype(np.uint64)

    def add_draws(self, collection_id: str, draws: NDArray[np.uint64]) -> None:
        """Store the draws of a collection, one for each row of the file."""
        values = (collection_id, self._content, draws.astype("<u8").tobytes())
        with self._connection:
            self._connection.execute("insert into collections values (?, ?, ?)", values)

    def is_finished(self, round_id: str) -> bool:
        """Return whether the service has acknowledged all reports to a round."""
        query = "select 1 from rounds where id = ? and reports is null"
        return self._connection.execute(query, [round_id]).fetchone() is not None

    def get_reports(self, round_id: str) -> Reports | None:
        """Return the stored reports to a round, or None."""
        row = self._connection.execute("select n_reports, reports from rounds where id = ?", [round_id]).fetchone()
        if row is None:
            return None
        n_reports, packed = row
        return unpack(np.frombuffer(packed, dtype=np.uint8).reshape(n_reports, len(packed) // max(n_reports, 1)))

    def add_reports(self, round_id: str, reports: Reports) -> None:
        """Store reports to a round before the first is sent."""
        packed = pack(reports)
        with self._connection:
            self._connection.execute("insert into rounds values (?, ?, ?)", (round_id, len(packed), packed.tobytes()))

    def finish(self, round_id: str) -> None:
        """Delete the reports to a round after the service has acknowledged all of them."""
        with self._connection:
            self._connection.execute("update rounds set reports = null where id = ?", [round_id])


def receipt_path(source: Path) -> Path:
    """Return the path of a file's receipt. All names of a file, such as links, have one receipt."""
    source = source.resolve()
    return source.with_name(source.name + SUFFIX)


@contextmanager
def open_receipt(source: Path) -> Iterator[Receipt]:
    """Open or create the receipt of a file, and lock it until the end of the `with` block.

    Raises
    ------
    ReceiptUnusable
        Another run has locked the receipt, or it cannot be written.
    """
    path = receipt_path(source)
    prepare_sqlite_files(path)
    try:
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("pragma locking_mode = exclusive")
            connection.execute("pragma secure_delete = on")
            connection.executescript(f"begin exclusive; {_SCHEMA} commit;")
            with source.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            yield Receipt(connection, content)
    except sqlite3.Error as error:
        reason = "another run uses it" if "locked" in str(error) else "it cannot be read or written"
        raise ReceiptUnusable(f"the receipt {path.name} beside the file is required, but {reason}") from None
