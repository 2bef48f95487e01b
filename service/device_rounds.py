"""What devices may answer: the same bytes for every device, held for a second.

`GET /v1/datasets/{dataset_id}/round` is what a million devices ask. Its answer is read from
the database once a second and gateway, whoever asks, and dropped at once where the bulletin
says that the dataset's rounds changed. A look's answer counts from before the look: nobody is
shown a round for longer than a second after it was closed, or after its own time. Who may
see the dataset is checked at each request.
"""

import asyncio
import re
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models import dataset as datasets
from models import round as rounds
from models.db import Database
from models.errors import NotFound
from models.tenant import Caller
from models.tenant import Scope as KeyScope
from service import views
from service.middleware import header
from service.notices import Notices
from service.validators import etag, is_named

HOLD_SECONDS = 1.0  # so long an answer may be given again
MAX_HELD_BYTES = 64 << 20  # of all datasets; of more, those read longest ago are read anew
ASK_AGAIN_SECONDS = 30  # devices that found no open round
FRESH_SECONDS = 5  # how long a cache in between may hand it out
SCOPES = (KeyScope.DEVICE, KeyScope.DATASETS, KeyScope.JOBS)
ROUTE = "/v1/datasets/{dataset_id}/round"

_PATH = re.compile("/v1/datasets/(ds_[0-9a-z]{26})/round")
_OVERHEAD_BYTES = 1024  # of an answer in memory, beside its body


@dataclass(frozen=True, slots=True)
class Answer:
    """What devices are sent, and who may see it.

    Attributes
    ----------
    tenant_id, dataset_id : str
    body : bytes
    tag : str
        Its `ETag`.
    has_rounds : bool
    until_seconds : float
        Of the monotonic clock; nobody is given it from then on.
    until_micros : int or None
        Of the database's clock: when the first of its rounds closes by itself.
    """

    tenant_id: str
    dataset_id: str
    body: bytes
    tag: str
    has_rounds: bool
    until_seconds: float
    until_micros: int | None

    def is_seen_by(self, caller: Caller) -> bool:
        """Whether the dataset is one of the caller's."""
        return self.tenant_id == caller.tenant_id and caller.sees(self.dataset_id)

    def response(self, if_none_match: str | None) -> Response:
        """The answer to one device; without its body where the device has it."""
        headers = {"etag": self.tag, "cache-control": f"public, max-age={FRESH_SECONDS}"}
        if not self.has_rounds:
            headers["retry-after"] = str(ASK_AGAIN_SECONDS)
        if if_none_match is not None and is_named(self.tag, if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type="application/json")


class DeviceRounds:
    """The answers one gateway holds. It belongs to the event loop.

    Parameters
    ----------
    database : Database
    notices : Notices
        Says which datasets' answers are to be read anew.
    """

    def __init__(self, database: Database, notices: Notices) -> None:
        self._database = database
        self._held: OrderedDict[str, Answer] = OrderedDict()
        self._n_bytes = 0
        self._looks: dict[str, asyncio.Task[Answer]] = {}
        notices.listen(self.drop)

    def held(self, caller: Caller, dataset_id: str) -> Answer | None:
        """The answer at hand, for who may see it."""
        found = self._held.get(dataset_id)
        if found is None or not found.is_seen_by(caller) or not self._is_fresh(found):
            return None
        return found

    def _is_fresh(self, found: Answer) -> bool:
        if time.monotonic() >= found.until_seconds:
            return False
        return found.until_micros is None or self._database.clock() < found.until_micros

    async def answer(self, caller: Caller, dataset_id: str) -> Answer:
        """The answer, at hand or by one look for all who wait for it. Raises NotFound.

        A dataset is looked up for whoever asks first, and told to those who may see it.
        """
        found = self.held(caller, dataset_id)
        if found is None:
            look = self._looks.get(dataset_id)
            if look is None:
                look = asyncio.create_task(run_in_threadpool(self._read, dataset_id))
                self._looks[dataset_id] = look
                look.add_done_callback(lambda done: self._looked(dataset_id, done))
            found = await asyncio.shield(look)
        if not found.is_seen_by(caller):
            raise NotFound("dataset")
        return found

    def drop(self, dataset_id: str) -> None:
        """Read it anew, also where a look is under way: that may have seen what was before."""
        self._looks.pop(dataset_id, None)
        if (found := self._held.pop(dataset_id, None)) is not None:
            self._n_bytes -= _size(found)

    def _looked(self, dataset_id: str, look: "asyncio.Task[Answer]") -> None:
        failed = look.cancelled() or look.exception() is not None
        if self._looks.get(dataset_id) is not look:
            return
        self.drop(dataset_id)
        if failed:
            return
        found = look.result()
        self._held[dataset_id] = found
        self._n_bytes += _size(found)
        while self._n_bytes > MAX_HELD_BYTES:
            self._n_bytes -= _size(self._held.popitem(last=False)[1])

    def _read(self, dataset_id: str) -> Answer:
        began, now = time.monotonic(), self._database.clock()
        with self._database.reading() as session:
            dataset = datasets.get_live(session, dataset_id)
            still_open = rounds.open_rounds(session, dataset_id, now=now)
            body = views.device_rounds(still_open)
        return Answer(
            dataset.tenant_id,
            dataset_id,
            body,
            etag(body),
            bool(still_open),
            began + HOLD_SECONDS,
            min((each.closes_at for each in still_open), default=None),
        )


def _size(found: Answer) -> int:
    return len(found.body) + _OVERHEAD_BYTES


class DeviceDesk:
    """Pure ASGI: answers what is at hand without the framework; hands everything else on."""

    def __init__(self, app: ASGIApp, *, device_rounds: DeviceRounds) -> None:
        self._app = app
        self._device_rounds = device_rounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if path is not None:
            caller: Caller = scope["state"]["caller"]
            if any(caller.may(each) for each in SCOPES):
                found = self._device_rounds.held(caller, path[1])
                if found is not None:
                    scope["state"]["route"] = ROUTE
                    asked = header(scope, b"if-none-match")
                    await found.response(None if asked is None else asked.decode("latin-1"))(scope, receive, send)
                    return
        await self._app(scope, receive, send)
