"""Dependencies of routes: context, ids, pages and idempotent POST requests."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.openapi.models import Example
from pydantic import AfterValidator, Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session
from typing_extensions import TypeAliasType

from models.database.types import canonical_json
from models.errors import NotFound
from models.identity import tenants
from models.identity.caller import Caller
from models.identity.tenants import TenantLimits
from models.jobs import idempotency
from models.jobs.idempotency import StoredResponse
from models.tables.identity import Scope
from service.context import GatewayContext
from service.http import auth, problems
from service.http.problems import (
    BadRequest,
    Forbidden,
    IdempotencyKeyReused,
    PayloadTooLarge,
    Problem,
    Unauthenticated,
    UnsupportedMediaType,
    ValidationFailed,
    problem_responses,
)
from service.schemas.base import EXAMPLE_ULID
from service.schemas.fields import ULID, Time, check_time

Json = dict[str, Any]

MAX_PAGE = 1000
DEFAULT_PAGE = 50

# problems of a request with a body, and of a POST request with a body
JSON_BODY: tuple[type[Problem], ...] = (BadRequest, PayloadTooLarge, UnsupportedMediaType)
POST_BODY: tuple[type[Problem], ...] = (BadRequest, IdempotencyKeyReused, *JSON_BODY[1:])


def rejections(*kinds: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of an operation that needs a key: these problems, and those of a missing or weak key."""
    return problem_responses(Unauthenticated, Forbidden, *kinds)


NOT_FOUND = rejections(problems.NotFound)


async def _services(request: Request) -> GatewayContext:
    found: GatewayContext = request.app.state.context
    return found


Services = Annotated[GatewayContext, Depends(_services)]


# ---- ids in paths ----


def _well_formed(prefix: str, what: str) -> AfterValidator:
    pattern = re.compile(f"{prefix}_{ULID}")

    def check(value: str) -> str:
        if not pattern.fullmatch(value):  # an id that was never issued
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
SeriesIdInPath = Annotated[str, *_path("ser", "series")]
ClusterIdInPath = Annotated[str, *_path("clu", "cluster")]
KeyIdInPath = Annotated[str, *_path("key", "key")]
WebhookIdInPath = Annotated[str, *_path("whk", "webhook")]
DeliveryIdInPath = Annotated[str, *_path("msg", "delivery")]
DatasetIdInQuery = Annotated[
    Annotated[str, StringConstraints(pattern=f"^ds_{ULID}$")] | SkipJsonSchema[None],
    Query(description="Only objects of this dataset."),
]
TimeInQuery = Annotated[Time, AfterValidator(check_time)]


# ---- pages ----


Row = TypeVar("Row")


class Bounds(TypedDict):
    """Arguments of a query for a page of rows by id."""

    after: str
    limit: int
    newest_first: bool


class NumberedBounds(TypedDict):
    """Arguments of a query for a page of rows by sequence number."""

    after_seq: int
    limit: int
    newest_first: bool


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The requested page of a list.

    `bounds` are the arguments of a query for its rows, by id, and `numbered_bounds` those by sequence number. One row
    more than the limit shows that another page follows.
    """

    after: str  # last id or sequence number of the previous page; empty for the first page
    limit: int
    newest_first: bool = True

    @property
    def bounds(self) -> Bounds:
        """Return the arguments of a query by id."""
        return {"after": self.after, "limit": self.limit + 1, "newest_first": self.newest_first}

    @property
    def numbered_bounds(self) -> NumberedBounds:
        """Return the arguments of a query by sequence number."""
        return {"after_seq": self.after_seq, "limit": self.limit + 1, "newest_first": self.newest_first}

    @property
    def after_seq(self) -> int:
        """Return the sequence number after which a `NumberedPage` starts."""
        return int(self.after or 0)

    @property
    def after_place(self) -> tuple[int, int] | None:
        """Return the round and report index after which a `ReportPage` starts; None for the first page."""
        round_index, _, report_index = self.after.partition(".")
        return (int(round_index), int(report_index)) if self.after else None

    def respond(
        self, rows: list[Row], serialise: Callable[[Row], Json], place: Callable[[Row], str] = attrgetter("id")
    ) -> Response:
        """Build the response with a page of rows that were read with one row more than the limit.

        `place` returns the id or sequence number of a row, from which the next page continues.
        """
        next_cursor = None
        if len(rows) > self.limit:
            rows = rows[: self.limit]
            next_cursor = place(rows[-1])
        return respond({"items": [serialise(row) for row in rows], "next_cursor": next_cursor})


Order = TypeAliasType(
    "Order", Annotated[Literal["newest", "oldest"], Field(description="Which items of a list come first.")]
)


def _page(pattern: str, *, has_order: bool = True) -> Any:
    """Return the dependency of a list with cursors that match a pattern."""
    cursors = re.compile(pattern)

    def check(value: str | None) -> str | None:
        if value is not None and not cursors.fullmatch(value):
            message = "the cursor is invalid; use `next_cursor` of the previous page"
            raise ValidationFailed(errors=[{"pointer": "", "parameter": "cursor", "message": message}])
        return value

    async def page(
        services: Services,
        cursor: Annotated[
            str | SkipJsonSchema[None],
            AfterValidator(check),
            Query(
                description="`next_cursor` of the previous page; none for the first.",
                json_schema_extra={"pattern": f"^{pattern}$"},
            ),
        ] = None,
        limit: Annotated[
            int,
            Query(
                ge=1,
                le=MAX_PAGE,
                description="Maximal number of items on the page. The operator may set a lower limit.",
            ),
        ] = DEFAULT_PAGE,
    ) -> PageQuery:
        return PageQuery(cursor or "", min(limit, services.settings.max_page))

    async def ordered_page(
        found: Annotated[PageQuery, Depends(page)],
        order: Annotated[
            Order, Query(description="`newest` lists the newest items first, `oldest` the oldest. A cursor keeps it.")
        ] = "newest",
    ) -> PageQuery:
        return replace(found, newest_first=order == "newest")

    return Depends(ordered_page if has_order else page)


RequestedPage = Annotated[PageQuery, _page(f"[a-z]{{2,3}}_{ULID}")]
NumberedPage = Annotated[PageQuery, _page("[0-9]{1,15}")]
ReportPage = Annotated[PageQuery, _page(r"[0-9]{1,15}\.[0-9]{1,15}", has_order=False)]


# ---- responses ----


def respond(body: Json) -> Response:
    """Build a response from a body."""
    return Response(canonical_json(body).encode(), media_type="application/json")


# ---- idempotent POST requests ----


IdempotencyKey = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255, pattern="^[!-~]+$")] | SkipJsonSchema[None],
    Header(
        alias="Idempotency-Key",
        description="Makes a retry safe: a repetition within a day gets the response of the first request.",
    ),
]


@dataclass(frozen=True, slots=True)
class Created:
    """Outcome of a POST request.

    Attributes
    ----------
    body : dict
        Response body.
    location : str, optional
        Path of the new object.
    kept : dict, optional
        Stored copy for idempotent replay, if it differs from `body` (secrets are shown once).
    wake : str, optional
        Job or round for which a worker is notified.
    changed : sequence of str
        Ids of jobs that changed and of datasets with changed open rounds; their watchers are notified.
    """

    body: Json
    location: str | None = None
    kept: Json | None = None
    wake: str | None = None
    changed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A POST request that takes effect once for each `Idempotency-Key`."""

    services: GatewayContext
    caller: Caller
    key: str | None
    fingerprint: bytes
    name: str  # name of the transaction

    def limits(self, session: Session) -> TenantLimits:
        """Return the limits of the caller's tenant."""
        return tenants.limits(session, self.caller.tenant_id, self.services.settings)

    def respond(self, status: int, effect: Callable[[Session, int], Created]) -> Response:
        """Apply the effect and store the response in one transaction, or replay the stored response.

        Parameters
        ----------
        status : int
            Status of the response.
        effect : callable
            Takes the session and the time. It must change only the database, because it is called again after a
            serialisation failure.

        Raises
        ------
        IdempotencyKeyReused
            The key was used for another request.
        """
        database, tenant_id = self.services.database, self.caller.tenant_id

        def do(session: Session) -> tuple[StoredResponse, Created | None]:
            now = database.clock()
            if self.key is not None:
                earlier = idempotency.begin(session, tenant_id, self.key, self.fingerprint, now=now)
                if earlier is not None:
                    return earlier, None
            created = effect(session, now)
            response = StoredResponse(status, created.location, canonical_json(created.body).encode())
            if self.key is not None:
                kept = created.body if created.kept is None else created.kept
                stored = replace(response, body=canonical_json(kept).encode())
                idempotency.finish(session, tenant_id, self.key, stored)
            return response, created

        response, created = database.run(self.name, do)
        headers = {} if response.location is None else {"location": response.location}
        if created is None:
            headers["idempotent-replayed"] = "true"
        else:
            if created.wake is not None:
                self.services.job_signal.notify(created.wake)
            self.services.change_feed.publish(*created.changed)
        return Response(response.body, response.status, headers, media_type="application/json")


def fingerprinted(request: Request, caller: Caller) -> bytes:
    """Return what a fingerprint covers besides the body: method, path, query, and the dataset of the key.

    A proxy may spell the query in another way or order, so its parameters are compared.
    """
    query = canonical_json(sorted(request.query_params.multi_items()))
    return "\n".join([request.method, request.url.path, query, caller.dataset_id or ""]).encode()


def idempotent_post(*scopes: Scope, whole_tenant: bool = False) -> Callable[..., Awaitable[IdempotentRequest]]:
    """Return a dependency: a POST request of a caller with one of the scopes."""
    require = auth.require(*scopes, whole_tenant=whole_tenant)

    async def dependency(
        request: Request,
        services: Services,
        caller: Annotated[Caller, Depends(require)],
        idempotency_key: IdempotencyKey = None,
    ) -> IdempotentRequest:
        digest = hashlib.sha256(fingerprinted(request, caller) + b"\n" + await request.body())
        return IdempotentRequest(services, caller, idempotency_key, digest.digest(), request.scope["route"].name)

    return dependency
