"""The schema of the queue, and the steps on which the privacy of a release depends."""

import hmac
from collections.abc import Callable, Iterator
from functools import lru_cache
from random import SystemRandom
from typing import NamedTuple

from sfumato.device.sealing import unwrap
from shuffler.rounds import Round, parse_round

SCHEMA_VERSION = 2

SCHEMA = """
CREATE TABLE IF NOT EXISTS senders (
    key_hash BLOB NOT NULL PRIMARY KEY,  -- SHA-256 of the bearer key
    name TEXT NOT NULL UNIQUE,           -- the sender, or the app backend that names senders
    dataset_id TEXT NOT NULL,
    is_backend INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds (
    id TEXT NOT NULL PRIMARY KEY,
    dataset_id TEXT NOT NULL,
    document BLOB NOT NULL,       -- the first bytes that the service published
    state TEXT NOT NULL,
    n_reports INTEGER NOT NULL,
    secret BLOB,                  -- key of the HMAC; NULL from the release on
    outer_key BLOB,               -- private key of the outer layer; NULL from the release on
    phase INTEGER NOT NULL        -- release times: multiples of the interval, plus this fraction of it in 2^-32
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reports (
    round_id TEXT NOT NULL,
    place BLOB NOT NULL,          -- HMAC of the sender
    sealed BLOB NOT NULL,
    PRIMARY KEY (round_id, place),
    UNIQUE (round_id, sealed)     -- a copy under another name counts once
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    round_id TEXT NOT NULL PRIMARY KEY,
    sealed BLOB NOT NULL          -- permuted sealed reports, one after the other
) STRICT, WITHOUT ROWID;
"""


@lru_cache(maxsize=256)
def _parse(document: bytes) -> Round:
    return parse_round(document)


def _fits(found: Round, wrapped: bytes) -> bool:
    return len(wrapped) == found.sent_bytes


def _place(secret: bytes, sender: str, person: str | None) -> bytes:
    return hmac.digest(secret, f"{sender}\0{person or ''}".encode(), "sha256")


def _permute(reports: list[bytes]) -> None:
    SystemRandom().shuffle(reports)


class Steps(NamedTuple):
    """The steps of a queue. The audit replaces single ones by faults that its checks must find.

    Attributes
    ----------
    schema : str
        Statements that create the tables.
    parse : callable
        Return the round of a stored document.
    fits : callable
        Return whether a report that arrived has the length of its round.
    unwrap : callable
        Yield reports without their outer layer, with the id and the outer key of their round.
    place : callable
        Return the key under which a report is stored, from the secret of the round, the sender and the person.
    permute : callable
        Permute the reports of a release in their list.
    """

    schema: str = SCHEMA
    parse: Callable[[bytes], Round] = _parse
    fits: Callable[[Round, bytes], bool] = _fits
    unwrap: Callable[[Iterator[bytes], str, bytes], Iterator[bytes | None]] = unwrap
    place: Callable[[bytes, str, str | None], bytes] = _place
    permute: Callable[[list[bytes]], None] = _permute


STEPS = Steps()
