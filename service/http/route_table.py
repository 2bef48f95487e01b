"""The paths of the gateway with what middleware decides from them: key, body limit, CORS, timing and rate limit.

The gateway finds the entry of a request once, at its entrance (`enter`). Middleware reads it with `entry_of`.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from starlette.types import Scope


class Kind(Enum):
    """Sender of a request, which decides whether it needs a key."""

    API = auto()  # a client with a key
    DEVICE = auto()  # a device with a key; not traced, because the times of devices must not be stored
    PROBE = auto()  # a probe of the operator without a key; not traced, and exempt from rate limits
    PUBLIC = auto()  # a browser; the console checks its own sessions


class Body(Enum):
    """Content of a request, which decides the limits of its size and time."""

    DOCUMENT = auto()
    POINTS = auto()
    REPORTS = auto()
    UPLOAD = auto()  # records, or a batch of sealed reports


class Rate(Enum):
    """Rate limit of requests with a key."""

    KEY = auto()  # the limit of the key, or of devices if the key has only the scope `device`
    DEVICE_KEY = auto()  # the limit of devices for every key


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of the gateway.

    Attributes
    ----------
    template : str
        The path as in the OpenAPI document.
    kind : Kind
    body : Body
    cors : str, optional
        Method that web pages of allowed origins may call.
    timed : tuple of str
        Methods with a duration that may stand in logs, metrics and traces. Before adding one, check that it reveals
        nothing private. The duration of an upload, a count, a deletion or a wait for a job can reveal how many records
        exist.
        Writes wait for the lock on the dataset's row, which an upload keeps while it is stored.
    rate : Rate
    is_stream : bool
        Whether the response is a stream. Then HEAD is not answered as GET.
    """

    template: str
    kind: Kind = Kind.API
    body: Body = Body.DOCUMENT
    cors: str | None = None
    timed: tuple[str, ...] = ()
    rate: Rate = Rate.KEY
    is_stream: bool = False

    @property
    def needs_key(self) -> bool:
        """Return whether a request needs a bearer key."""
        return self.kind in (Kind.API, Kind.DEVICE)

    @property
    def is_traced(self) -> bool:
        """Return whether a request has a span."""
        return self.kind not in (Kind.DEVICE, Kind.PROBE)


REPORTS = Entry(
    "/v1/rounds/{round_id}/reports", Kind.DEVICE, Body.REPORTS, cors="POST", timed=("POST",), rate=Rate.DEVICE_KEY
)
OPEN_ROUNDS = Entry("/v1/datasets/{dataset_id}/round", Kind.DEVICE, cors="GET", timed=("GET",))
HEALTH = Entry("/healthz", Kind.PROBE, timed=("GET",))

ENTRIES = (
    REPORTS,
    OPEN_ROUNDS,
    HEALTH,
    Entry("/readyz", Kind.PROBE, timed=("GET",)),
    Entry("/v1/datasets", timed=("GET",)),
    Entry("/v1/datasets/{dataset_id}", timed=("GET",)),
    Entry("/v1/datasets/{dataset_id}/budget", timed=("GET",)),
    Entry("/v1/datasets/{dataset_id}/ledger", timed=("GET",)),
    Entry("/v1/datasets/{dataset_id}/records", body=Body.UPLOAD),
    Entry("/v1/datasets/{dataset_id}/rounds", timed=("GET",)),
    Entry("/v1/forecasts", timed=("POST",)),
    Entry("/v1/jobs", timed=("GET",)),
    Entry("/v1/jobs/{job_id}/assign", body=Body.POINTS),
    Entry("/v1/jobs/{job_id}/events", is_stream=True),
    Entry("/v1/jobs/{job_id}/result", timed=("GET",)),
    Entry("/v1/keys", timed=("GET",)),
    Entry("/v1/rounds/{round_id}", timed=("GET",)),
    Entry("/v1/rounds/{round_id}/batches", body=Body.UPLOAD),
    Entry("/console/datasets/{dataset_id}/records", Kind.PUBLIC, Body.UPLOAD),
    Entry("/console/jobs/{job_id}/events", Kind.PUBLIC, is_stream=True),
)
_OTHER_API = Entry("")  # paths of the API without an entry, and unknown paths below it
_OTHER_PUBLIC = Entry("", Kind.PUBLIC)  # the console, the documentation and unknown paths


def _pattern(number: int, template: str) -> str:
    """Return a pattern with the group `e` of the entry and the group `i` of its id."""
    return f"(?P<e{number}>" + re.sub(r"\{\w+\}", f"(?P<i{number}>[^/]+)", template) + ")"


_PATHS = re.compile("|".join(_pattern(number, entry.template) for number, entry in enumerate(ENTRIES)))
_FOUND = {f"e{i}": (entry, f"i{i}" if "{" in entry.template else None) for i, entry in enumerate(ENTRIES)}


def find(path: str) -> tuple[Entry, str]:
    """Return the entry of a path, and the id in the path or an empty text."""
    match = _PATHS.fullmatch(path)
    if match is None:
        return (_OTHER_API if path.startswith("/v1") else _OTHER_PUBLIC), ""
    entry, group = _FOUND[match.lastgroup or ""]
    return entry, match[group] if group else ""


def enter(scope: Scope) -> Entry:
    """Find the entry of a request, and store it with the id of its path in the request's state."""
    state = scope.setdefault("state", {})
    state["entry"], state["path_id"] = find(scope["path"])
    entry: Entry = state["entry"]
    return entry


def entry_of(scope: Scope) -> Entry:
    """Return the entry that `enter` found."""
    entry: Entry = scope["state"]["entry"]
    return entry


def path_id(scope: Scope) -> str:
    """Return the id in the path of a request that `enter` found."""
    found: str = scope["state"]["path_id"]
    return found
