"""Rounds of the service, fetched at most once every few seconds and stored with the first bytes that arrived."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from sfumato.errors import SfumatoError
from sfumato.transport.exchange import Request
from shuffler.queue import Queue
from shuffler.rounds import parse_listing

if TYPE_CHECKING:
    from sfumato.transport.http import Http

CACHE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Directory:
    """The open rounds of each dataset. Safe for threads.

    Parameters
    ----------
    queue : Queue
        Keeps the rounds: all devices receive the bytes that the service published first.
    service : Http
    """

    def __init__(self, queue: Queue, service: "Http") -> None:
        self._queue, self._service = queue, service
        self._lock = threading.Lock()
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}  # end of the cache time, round ids

    def list_open(self, dataset_id: str) -> list[str]:
        """Return the ids of the rounds that accept reports. If the service fails, those of the last answer.

        Raises
        ------
        ApiProblem, Unreachable, InvalidSpec
            The service never answered for this dataset, or with another form.
        """
        with self._lock:
            until, listed = self._listed.get(dataset_id, (0.0, None))
            if listed is None or time.monotonic() >= until:
                try:
                    listed = self._fetch(dataset_id)
                except SfumatoError as error:
                    if listed is None:
                        raise
                    logger.warning("dataset %s: the open rounds are those of the last answer: %s", dataset_id, error)
                self._listed[dataset_id] = (time.monotonic() + CACHE_SECONDS, listed)
        return [round_id for round_id in self._queue.list_open(dataset_id, time.time()) if round_id in listed]

    def _fetch(self, dataset_id: str) -> frozenset[str]:
        rounds = parse_listing(self._service.send(Request("GET", f"datasets/{dataset_id}/round")).object())
        for found in rounds:
            if self._queue.add_round(dataset_id, found) != found.document:
                logger.error("round %s: the service published other bytes; devices get the first ones", found.id)
        return frozenset(found.id for found in rounds)
