"""Publish the ids of jobs and datasets that changed, so that gateways re-read them at once.

A message carries ids only. A subscriber reads the database, which checks permissions. Messages are sent after the
commit and are not stored. If one is lost, subscribers find the change at their next poll.

Redis channel:
    sfumato:changes     ``<publisher> <id> <id> ...``
Without Redis, next to an embedded database:
    <database>-changes  named pipe from workers to a gateway with the same messages, one per line
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from runtime.named_pipe import NamedPipe
from runtime.redis_client import RedisClient

CHANNEL = "sfumato:changes"
MAX_IDS_PER_MESSAGE = 100  # keeps a message within the 4 kB that a pipe writes atomically


def new_publisher_id() -> str:
    """Return a random id by which a publisher recognises its own messages."""
    return secrets.token_hex(4)


def split_messages(publisher_id: str, ids: Sequence[str]) -> list[str]:
    """Return the messages that announce `ids`, at most `MAX_IDS_PER_MESSAGE` ids each."""
    starts = range(0, len(ids), MAX_IDS_PER_MESSAGE)
    return [" ".join((publisher_id, *ids[start : start + MAX_IDS_PER_MESSAGE])) for start in starts]


def parse_message(message: bytes) -> tuple[str, list[str]]:
    """Return the publisher id and the object ids of a message. Unknown ids are harmless: no watcher waits for them."""
    publisher_id, *ids = message.decode("ascii", "replace").split(" ")
    return publisher_id, ids


class ChangePublisher(Protocol):
    """Publishes changes of jobs and of a dataset's open rounds."""

    @property
    def is_available(self) -> bool:
        """Return whether the last message could be sent."""

    def publish(self, *ids: str) -> None:
        """Publish ids of changed objects. Never raise: a failure only delays subscribers."""


class NullPublisher:
    """Discards messages. Used when there is no Redis and the database is remote; gateways poll."""

    is_available = True

    def publish(self, *ids: str) -> None:
        """Do nothing."""


class PipePublisher:
    """Publishes to a gateway on the same machine through a named pipe."""

    is_available = True

    def __init__(self, pipe: NamedPipe) -> None:
        self._pipe = pipe
        self._publisher_id = new_publisher_id()

    def publish(self, *ids: str) -> None:
        """Write the ids to the pipe if a gateway reads from it."""
        for message in split_messages(self._publisher_id, ids):
            self._pipe.write_line(message)


class RedisPublisher:
    """Publishes over Redis. Messages are lost while Redis is unavailable."""

    def __init__(self, url: str) -> None:
        self._client = RedisClient(
            url, event="change_publisher_unavailable", consequence="gateways poll the database until Redis is back"
        )
        self._publisher_id = new_publisher_id()

    @property
    def is_available(self) -> bool:
        """Return whether the last message could be sent."""
        return self._client.is_available

    def publish(self, *ids: str) -> None:
        """Publish the ids to the channel."""
        for message in split_messages(self._publisher_id, ids):
            self._client.run(lambda redis, message=message: redis.publish(CHANNEL, message))  # type: ignore[misc]


def change_pipe(database_file: Path) -> NamedPipe:
    """Return the pipe of an embedded database, for publishing or for subscribing."""
    return NamedPipe(database_file.with_name(f"{database_file.name}-changes"))


def open_change_publisher(redis_url: str | None, database_file: Path | None = None) -> ChangePublisher:
    """Return the publisher that the settings select: Redis, else the embedded database's pipe, else none."""
    if redis_url:
        return RedisPublisher(redis_url)
    return NullPublisher() if database_file is None else PipePublisher(change_pipe(database_file))
