"""What routes are handed: the services, well-formed ids, a page's place, and a POST that happens once."""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.openapi.models import Example
from pydantic import AfterValidator, BaseModel, StringConstraints
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import idempotency
from models.db import canonical_json
from models.errors import NotFound
from models.idempotency import Answer
from models.tenant import Caller, Scope
from service import auth
from service.problems import ValidationFailed
from service.resources import ULID
from service.schemas import EXAMPLE_ULID
from service.services import Services

MAX_PAGE = 1000
DEFAULT_PAGE = 50


async def _services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


ServicesHere = Annotated[Services, Depends(_services)]


# ---- ids in paths ----


def _well_formed(prefix: str, what: str) -> AfterValidator:
    pattern = re.compile(f"{prefix}_{ULID}")

    def check(value: str) -> str:
        if not pattern.fullmatch(value):  # such an id was never given out
            raise NotFound(what)
        return value

    return AfterValidator(check)


def _path(prefix: str, what: str) -> tuple[object, object]:
    schema = {"pattern": f"^{prefix}_{ULID}$"}
    example: dict[str, Example] = {what: {"value": f"{prefix}_{EXAMPLE_ULID}"}}
    return _well_formed(prefix, what), Path(
        description=f"The {what}.", json_schema_extra=schema, openapi_examples=example
    )


DatasetIdInPath = Annotated[str, *_path("ds", "dataset")]
RoundIdInPath = Annotated[str, *_path("rnd", "round")]
JobIdInPath = Annotated[str, *_path("job", "job")]
KeyIdInPath = Annotated[str, *_path("key", "key")]
WebhookIdInPath = Annotated[str, *_path("whk", "webhook")]
DeliveryIdInPath = Annotated[str, *_path("msg", "delivery")]
DatasetIdInQuery = Annotated[
    Annotated[str, StringConstraints(pattern=f"^ds_{ULID}$")] | SkipJsonSchema[None],
    Query(description="Only of this dataset."),
]


# ---- pages ----


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which page is asked for."""

    after: str  # the last id, or sequence number, of the page before; empty for the first page
    limit: int

    @property
    def after_seq(self) -> int:
        """The place of a page that goes by sequence numbers."""
        if self.after and not (self.after.isascii() and self.after.isdigit() and len(self.after) < 16):
            raise _bad_cursor()
        return int(self.after or 0)

    @property
    def after_place(self) -> tuple[int, int] | None:
        """The place of a page that goes by rounds and the reports of each; none for the first page."""
        parts = self.after.split(".") if self.after else []
        if parts and (len(parts) != 2 or not all(part.isdigit() and len(part) < 16 for part in parts)):
            raise _bad_cursor()
        return (int(parts[0]), int(parts[1])) if parts else None

    def cut(self, rows: list[Row], place: Callable[[Row], str]) -> tuple[list[Row], str | None]:
        """A page out of rows that were asked for with one more than the limit, and the next page's cursor."""
        if len(rows) <= self.limit:
            return rows, None
        rows = rows[: self.limit]
        return rows, cursor_of(place(rows[-1]))


def cursor_of(place: str) -> str:
    """A place as it travels."""
    return urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _bad_cursor() -> ValidationFailed:
    message = "take the cursor from `next_cursor` of the page before"
    return ValidationFailed(errors=[{"pointer": "", "parameter": "cursor", "message": message}])


async def _page(
    services: ServicesHere,
    cursor: Annotated[
        str | SkipJsonSchema[None], Query(description="`next_cursor` of the page before; left out, the first page.")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Most items on the page; the operator may allow fewer.")
    ] = DEFAULT_PAGE,
) -> PageQuery:
    after = ""
    if cursor is not None:
        try:
            after = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        except ValueError:
            raise _bad_cursor() from None
        if not re.fullmatch(rf"[a-z]+_{ULID}|\d+(\.\d+)?", after):
            raise _bad_cursor()
    return PageQuery(after, min(limit, services.settings.max_page))


PageHere = Annotated[PageQuery, Depends(_page)]


# ---- answers ----


def to_json(body: BaseModel | dict[str, Any]) -> bytes:
    """A resource as it travels."""
    return body.model_dump_json().encode() if isinstance(body, BaseModel) else canonical_json(body).encode()


def respond(body: BaseModel | dict[str, Any]) -> Response:
    """An answer that needs no more checks: its schema made it, or it was stored."""
    return Response(to_json(body), media_type="application/json")


# ---- a POST that happens once ----


IdempotencyKey = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255, pattern="^[!-~]+$")] | SkipJsonSchema[None],
    Header(
        alias="Idempotency-Key",
        description="Makes a retry harmless: repeated within a day, it is answered what it was the first time.",
    ),
]


@dataclass(frozen=True, slots=True)
class Made:
    """What a POST has done.

    Attributes
    ----------
    body : BaseModel or dict
        The answer.
    location : str, optional
        Path of what was made.
    kept : BaseModel, optional
        What a repeated request is answered, where that is less (a secret is shown once).
    ring : str, optional
        The job or round a worker is wanted for.
    tell : sequence of str
        Jobs that changed, and datasets whose open rounds did: whoever waits for them is told.
    """

    body: BaseModel | dict[str, Any]
    location: str | None = None
    kept: BaseModel | None = None
    ring: str | None = None
    tell: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Posting:
    """A POST of a caller, and how often it happens: once for each `Idempotency-Key`."""

    services: Services
    caller: Caller
    key: str | None
    fingerprint: bytes
    name: str  # of its transaction

    def answer(self, status: int, effect: Callable[[Session, int], Made]) -> Response:
        """Do it and keep the answer, in one transaction; or answer what was answered before.

        Parameters
        ----------
        status : int
            Of the answer.
        effect : callable
            Takes the session and the time. It changes nothing but the database: where that ends the
            transaction for others' sake, it is called again.

        Raises
        ------
        IdempotencyKeyReused
            The key was used for another request.
        """
        database, tenant_id = self.services.database, self.caller.tenant_id

        def do(session: Session) -> tuple[Answer, Made | None]:
            now = database.clock()
            if self.key is not None:
                earlier = idempotency.begin(session, tenant_id, self.key, self.fingerprint, now=now)
                if earlier is not None:
                    return earlier, None
            made = effect(session, now)
            answer = Answer(status, made.location, to_json(made.body))
            if self.key is not None:
                body = answer.body if made.kept is None else to_json(made.kept)
                idempotency.finish(session, tenant_id, self.key, Answer(status, made.location, body))
            return answer, made

        answer, made = database.run(self.name, do)
        if made is None:
            return _response(answer, {"idempotent-replayed": "true"})
        if made.ring is not None:
            self.services.doorbell.ring(made.ring)
        self.services.notices.tell(*made.tell)
        return _response(answer, {})


def _response(answer: Answer, headers: dict[str, str]) -> Response:
    if answer.location is not None:
        headers["location"] = answer.location
    return Response(answer.body, answer.status, headers, media_type="application/json")


def once(*scopes: Scope, whole_tenant: bool = False) -> Callable[..., Awaitable[Posting]]:
    """A dependency: the POST of a caller whose key has one of the scopes."""
    require = auth.require(*scopes, whole_tenant=whole_tenant)

    async def posting(
        request: Request,
        services: ServicesHere,
        caller: Annotated[Caller, Depends(require)],
        idempotency_key: IdempotencyKey = None,
    ) -> Posting:
        # a key bound to one dataset is not answered what another key was
        what = [request.method, request.url.path, caller.dataset_id or ""]
        digest = hashlib.sha256("\n".join(what).encode() + b"\n" + await request.body())
        return Posting(services, caller, idempotency_key, digest.digest(), request.scope["route"].name)

    return posting
