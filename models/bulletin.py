"""The bulletin: tells gateways which jobs and datasets changed, so that they look into the database at once.

Redis channel:
    sfumato:bulletin    messages `<origin> <id> <id> ...`: who tells, and ids of jobs and datasets
Without Redis, beside the embedded database:
    <file>-bulletin     named pipe; the same messages, a line each, from workers to a gateway

A message says that something changed and never what: whoever hears it reads SQL, which
checks who may see it. It is told after the commit and kept nowhere; one that is lost costs
whoever waits for it a slower look.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from models.named_pipe import NamedPipe

CHANNEL = "sfumato:bulletin"
MAX_IDS = 100  # in one message: a pipe takes 4 kB at once


def origin() -> str:
    """A name for whoever tells, so that it knows its own messages."""
    return secrets.token_hex(4)


def messages(origin: str, ids: Sequence[str]) -> list[str]:
    """What goes over the channel."""
    return [" ".join((origin, *ids[start : start + MAX_IDS])) for start in range(0, len(ids), MAX_IDS)]


def read(message: bytes) -> tuple[str, list[str]]:
    """(origin, ids) of a message; ids that are none are nobody's and wake nobody."""
    origin, *ids = message.decode("ascii", "replace").split(" ")
    return origin, ids


class Bulletin(Protocol):
    """Told after a commit that changed a job, or the open rounds of a dataset."""

    @property
    def is_away(self) -> bool:
        """Whether nobody can be told at the moment, as far as the last message told."""

    def tell(self, *ids: str) -> None:
        """Say that these jobs and datasets changed. Never raises."""


class SilentBulletin:
    """No Redis, and a database on another machine: gateways look into it at intervals."""

    is_away = False

    def tell(self, *ids: str) -> None:
        """Nothing to do."""


class PipeBulletin:
    """Tells a gateway of this machine."""

    is_away = False

    def __init__(self, pipe: NamedPipe) -> None:
        self._pipe = pipe
        self._origin = origin()

    def tell(self, *ids: str) -> None:
        """Say the ids, if anybody listens."""
        for message in messages(self._origin, ids):
            self._pipe.tell(message)


class RedisBulletin:
    """Tells over Redis; while it is away, nobody."""

    def __init__(self, url: str) -> None:
        from models.redis_link import RedisLink  # loads Redis' client, which others do without

        self._link = RedisLink(url, event="bulletin_away", consequence="gateways poll the database until it is back")
        self._origin = origin()

    @property
    def is_away(self) -> bool:
        """Whether the last message was in vain."""
        return self._link.is_away

    def tell(self, *ids: str) -> None:
        """Publish the ids."""
        for message in messages(self._origin, ids):
            self._link.run(lambda redis, message=message: redis.publish(CHANNEL, message))  # type: ignore[misc]


def pipe_beside(database_file: Path) -> NamedPipe:
    """The pipe of an embedded database, to tell through and to listen at."""
    return NamedPipe(database_file.with_name(f"{database_file.name}-bulletin"))


def open_bulletin(redis_url: str | None, database_file: Path | None = None) -> Bulletin:
    """The bulletin the settings ask for; without Redis it is beside the file of an embedded database."""
    if redis_url:
        return RedisBulletin(redis_url)
    return SilentBulletin() if database_file is None else PipeBulletin(pipe_beside(database_file))
