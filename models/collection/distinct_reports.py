"""Number of distinct reports of an open round, by which a round becomes full.

A report that is sent again counts once. Ingestion keeps no set of ids. It counts the received reports, and counts the
distinct ones when that number reaches the target. If some are missing, the round stays open, and the next count follows
when as many further reports have arrived. Later counts read new rows of the log only.
"""

import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from models.collection import report_log

# Odd secret factors: a client that knows them could choose ids that look repeated.
_FACTORS = np.array([secrets.randbits(64) | 1, secrets.randbits(64) | 1], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class DistinctReports:
    """The distinct reports of a round up to a row of its log.

    Memory: 8 bytes per report. Two different ids of n have the same fingerprint with a probability below n² / 2**65,
    so the probability that a round of ten million reports needs one report too many is below 3e-6.

    Attributes
    ----------
    last_row : int
        Number of the last row of the log that is counted.
    n_read : int
        Reports that are counted, including repeated ones.
    n_unreadable : int
        Counted reports in rows of another length; their ids are unknown. Each counts as distinct.
    fingerprints : ndarray of uint64
        Sorted fingerprints of the distinct ids.
    """

    last_row: int = 0
    n_read: int = 0
    n_unreadable: int = 0
    fingerprints: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64), repr=False)

    @property
    def count(self) -> int:
        """Return the number of distinct reports."""
        return len(self.fingerprints) + self.n_unreadable

    def advance(self, session: Session, round_id: str, width: int) -> "DistinctReports":
        """Return the count after the rows that were stored since.

        Parameters
        ----------
        session : Session
        round_id : str
        width : int
            Length of a packed report, in bytes.
        """
        last_row, n_read, n_unreadable = self.last_row, self.n_read, self.n_unreadable
        found: list[NDArray[np.uint64]] = []
        for row, n_reports, packed in report_log.counted_batches(session, round_id, after=self.last_row):
            last_row, n_read = row, n_read + n_reports
            if len(packed) == n_reports * width:
                found.append(_fingerprints(np.frombuffer(packed, dtype=np.uint8).reshape(n_reports, width)))
            else:
                n_unreadable += n_reports
        return DistinctReports(last_row, n_read, n_unreadable, _merge(self.fingerprints, found))


def _merge(known: NDArray[np.uint64], found: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Add fingerprints to sorted distinct ones."""
    if not found:
        return known
    new = np.unique(np.concatenate(found))
    if not len(known):
        return new
    places = np.searchsorted(known, new)
    is_new = known[np.minimum(places, len(known) - 1)] != new
    return np.insert(known, places[is_new], new[is_new])


def _fingerprints(records: NDArray[np.uint8]) -> NDArray[np.uint64]:
    words = np.ascontiguousarray(records[:, : report_log.ID_BYTES]).view("<u8").astype(np.uint64)
    mixed: NDArray[np.uint64] = (words[:, 0] ^ (words[:, 0] >> np.uint64(29))) * _FACTORS[0]
    mixed += (words[:, 1] ^ (words[:, 1] >> np.uint64(31))) * _FACTORS[1]
    return mixed
