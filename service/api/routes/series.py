"""Routes of series."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.identity.caller import Caller
from models.series import following, revisions, series, windows
from models.series.calendar import first_day
from models.tables import series as tables
from models.tables.datasets import Trust
from models.tables.identity import Scope
from service.api import job_submission
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    JSON_BODY,
    NOT_FOUND,
    POST_BODY,
    ClusterIdInPath,
    Created,
    DatasetIdInQuery,
    IdempotentRequest,
    Json,
    NumberedPage,
    RequestedPage,
    SeriesIdInPath,
    Services,
    idempotent_post,
    rejections,
    respond,
)
from service.api.series_terms import pin_algorithm, revised_terms
from service.context import GatewayContext
from service.http import problems
from service.http.auth import check, require
from service.schemas import serializers
from service.schemas.series import (
    MAX_WINDOWS,
    ClusterChange,
    NewRevision,
    NewSeries,
    Series,
    SeriesChange,
    SeriesCluster,
    SeriesClusterPage,
    SeriesEventPage,
    SeriesMap,
    SeriesPage,
    SeriesRevision,
    SeriesRevisionPage,
    WindowPage,
)
from sfumato.privacy.accounting import parse_epsilon
from sfumato.specs import to_series_algorithm

router = APIRouter(prefix="/v1/series", tags=["series"], route_class=DocumentRoute)

ReaderCaller = Annotated[Caller, Depends(require(Scope.GRANTS, Scope.JOBS, Scope.LEDGER))]
AnalystCaller = Annotated[Caller, Depends(require(Scope.JOBS))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.JOBS))]


@dataclass(frozen=True, slots=True)
class _AskedSeries:
    """A request about one series."""

    series_id: str
    caller: Caller
    services: GatewayContext

    def get(self, session: Session) -> tables.Series:
        """Return the series. Raise NotFound."""
        return series.get(session, self.caller, self.series_id)

    @contextmanager
    def reading(self) -> Iterator[tuple[Session, tables.Series]]:
        """Open a session that reads, and return it with the series. Raise NotFound."""
        with self.services.database.reading() as session:
            yield session, self.get(session)


async def _read(series_id: SeriesIdInPath, caller: ReaderCaller, services: Services) -> _AskedSeries:
    return _AskedSeries(series_id, caller, services)


async def _study(series_id: SeriesIdInPath, caller: AnalystCaller, services: Services) -> _AskedSeries:
    return _AskedSeries(series_id, caller, services)


ReadSeries = Annotated[_AskedSeries, Depends(_read)]
StudySeries = Annotated[_AskedSeries, Depends(_study)]


@router.post(
    "",
    summary="Create a series",
    status_code=201,
    response_model=Series,
    responses=rejections(
        problems.NotFound, problems.BudgetExhausted, problems.Conflict, problems.InsufficientReports, *POST_BODY
    ),
)
def create_series(body: NewSeries, request: IdempotentPost) -> Response:
    """Create a series of windows over a dataset.

    In each window, a job collects reports until the window ends, and its result is that of a job. A device has one
    secret draw for each cycle and answers in one of its windows. Each cycle gets a grant of its own when its first
    window opens. What a cycle does not spend expires at its end, and no other job or cycle can spend it. The grants of
    all cycles count towards the limits of the operator when the series is created.

    In a shuffled dataset, each window has one release. Its cost towards the service is charged when the round opens,
    once per cycle. The budget towards the service must cover all cycles when the series is created.

    In a central dataset, a window has the records that were uploaded in it, and its job begins a minute after its end.
    Windows have disjoint records. A user has at most `max_records_per_user` records in all of them together. So all
    windows are one cycle and cost the epsilon of one window.

    Needs the scope `jobs`, and the scope `grants` as well.
    """
    check(request.caller, Scope.GRANTS)
    algorithm = to_series_algorithm(body.algorithm.model_dump())

    def create(session: Session, now: int) -> Created:
        dataset = datasets.get(session, request.caller, body.dataset_id)
        pinned, epsilon_nano = pin_algorithm(
            dataset, algorithm, body.target_reports, body.cycle, allow_insufficient=body.allow_insufficient
        )
        release = job_submission.release_terms(dataset, body)
        plan = body.windows
        with problems.pointing_at("/windows"):
            first = first_day(plan.every, plan.time_zone, now) if plan.first is None else date.fromisoformat(plan.first)
            series.check_plan(plan.every, plan.time_zone, first, plan.count, now=now)
        with problems.pointing_at("/cycle"):
            series.check_cycle(body.cycle, plan.count)
        if dataset.trust == Trust.CENTRAL:
            with problems.pointing_at("/min_reports" if body.min_reports else "/cycle"):
                series.check_records(dataset, body.cycle, plan.count, body.min_reports)
        if release is not None:
            with problems.pointing_at("/min_batch"):
                revisions.check_batch(release.min_batch, body.target_reports, body.cycle)
        total = body.epsilon_total
        created = series.create(
            session,
            request.caller,
            dataset,
            name=body.name,
            algorithm=pinned,
            every=plan.every,
            time_zone=plan.time_zone,
            first=first,
            n_windows=plan.count,
            cycle=body.cycle,
            target_reports=body.target_reports,
            min_reports=body.min_reports,
            epsilon_nano=epsilon_nano,
            total_nano=None if total is None else parse_epsilon(total),
            season=body.season,
            least_change=body.least_change,
            release=release,
            limits=request.limits(session),
            now=now,
        )
        return Created(_serialised(session, created), location=f"/v1/series/{created.id}")

    return request.respond(201, create)


@router.get("", summary="List series", response_model=SeriesPage, responses=NOT_FOUND)
def list_series(
    caller: ReaderCaller, page: RequestedPage, services: Services, dataset_id: DatasetIdInQuery = None
) -> Response:
    """List the series that the key can access, newest first. Needs one of the scopes `grants`, `jobs`, `ledger`."""
    with services.database.reading() as session:
        if dataset_id is not None:
            datasets.get(session, caller, dataset_id, deleted=True)
        rows = series.page(session, caller, dataset_id=dataset_id, **page.bounds)
        return page.respond(rows, lambda row: _serialised(session, row))


@router.get("/{series_id}", summary="Get a series", response_model=Series, responses=NOT_FOUND)
def get_series(asked: ReadSeries) -> Response:
    """Return one series with its cost. Needs one of the scopes `grants`, `jobs`, `ledger`."""
    with asked.reading() as (session, found):
        return respond(_serialised(session, found))


@router.patch(
    "/{series_id}",
    summary="Change a series",
    response_model=Series,
    responses=rejections(problems.NotFound, problems.Conflict, *JSON_BODY),
)
def update_series(series_id: SeriesIdInPath, body: SeriesChange, caller: AnalystCaller, services: Services) -> Response:
    """Rename, pause, continue or end a series.

    An open window is completed in each case. The windows of a pause are missed and never opened later. The algorithm
    changes by a revision, and the windows never change. Needs the scope `jobs`.
    """

    def change(session: Session) -> Json:
        state = None if body.state is None else tables.SeriesState(body.state)
        now = services.database.clock()
        return _serialised(session, series.change(session, caller, series_id, name=body.name, state=state, now=now))

    return respond(services.database.run("change_series", change))


@router.post(
    "/{series_id}/revisions",
    summary="Revise a series",
    status_code=201,
    response_model=SeriesRevision,
    responses=rejections(
        problems.NotFound, problems.BudgetExhausted, problems.Conflict, problems.InsufficientReports, *POST_BODY
    ),
)
def create_revision(series_id: SeriesIdInPath, body: NewRevision, request: IdempotentPost) -> Response:
    """Change the algorithm, epsilon, or other terms of a series from its next cycle on.

    Windows before keep their terms. A revision that has not begun is replaced. The later cycles may cost what is left
    of the total. With another grid, epsilon or mechanism, earlier windows leave the pool, and clusters keep their ids
    by the place of their regions. The test starts again, so that a revision is no event.

    Needs the scope `jobs`, and the scope `grants` as well.
    """
    check(request.caller, Scope.GRANTS)

    def create(session: Session, now: int) -> Created:
        found = series.get(session, request.caller, series_id, lock=True)
        dataset = datasets.get(session, request.caller, found.dataset_id)
        terms, release = revised_terms(dataset, found, body)
        made = revisions.revise(session, request.caller, found, terms, release=release, now=now)
        return Created(serializers.series_revision(made), location=f"/v1/series/{series_id}/revisions")

    return request.respond(201, create)


@router.get(
    "/{series_id}/revisions",
    summary="List the revisions of a series",
    response_model=SeriesRevisionPage,
    responses=NOT_FOUND,
)
def list_series_revisions(asked: ReadSeries, page: NumberedPage) -> Response:
    """List the terms that a series has had, and those that begin later, newest first.

    Needs one of the scopes `grants`, `jobs`, `ledger`.
    """
    with asked.reading() as (session, found):
        rows = revisions.page(session, found, **page.numbered_bounds)
        return page.respond(rows, serializers.series_revision, lambda row: str(row.number + 1))


@router.get("/{series_id}/windows", summary="List windows", response_model=WindowPage, responses=NOT_FOUND)
def list_series_windows(asked: ReadSeries, page: NumberedPage) -> Response:
    """List the windows of a series up to the next one, newest first.

    Needs one of the scopes `grants`, `jobs`, `ledger`.
    """
    with asked.reading() as (session, found):
        rows = windows.list_windows(session, found, **page.numbered_bounds)
        of_jobs = rounds.list_for_jobs(session, [job.id for _, job in rows if job is not None])
        now = asked.services.database.clock()
        return page.respond(
            rows,
            lambda row: serializers.window(found, *row, of_jobs.get(row[0].job_id or "", []), now),
            lambda row: str(row[0].index + 1),
        )


@router.get(
    "/{series_id}/clusters",
    summary="List the clusters of a series",
    response_model=SeriesClusterPage,
    responses=NOT_FOUND,
)
def list_series_clusters(asked: StudySeries, page: RequestedPage) -> Response:
    """List all clusters that a series has had, newest first. Windows state their shares. Needs the scope `jobs`."""
    with asked.reading() as (session, found):
        rows = following.page_clusters(session, found, **page.bounds)
        return page.respond(rows, serializers.series_cluster)


@router.get(
    "/{series_id}/clusters/{cluster_id}",
    summary="Get a cluster of a series",
    response_model=SeriesCluster,
    responses=NOT_FOUND,
)
def get_series_cluster(asked: StudySeries, cluster_id: ClusterIdInPath) -> Response:
    """Return one cluster of a series. Needs the scope `jobs`."""
    with asked.reading() as (session, found):
        return respond(serializers.series_cluster(following.get_cluster(session, found, cluster_id)))


@router.patch(
    "/{series_id}/clusters/{cluster_id}",
    summary="Name a cluster of a series",
    response_model=SeriesCluster,
    responses=rejections(problems.NotFound, *JSON_BODY),
)
def update_series_cluster(asked: StudySeries, cluster_id: ClusterIdInPath, body: ClusterChange) -> Response:
    """Name a cluster. The name stays with its id in all windows, earlier ones too. Needs the scope `jobs`."""

    def change(session: Session) -> Json:
        found, now = asked.get(session), asked.services.database.clock()
        with problems.pointing_at("/name"):
            named = following.name_cluster(session, asked.caller, found, cluster_id, body.name, now=now)
        return serializers.series_cluster(named)

    return respond(asked.services.database.run("name_cluster", change))


@router.get(
    "/{series_id}/map",
    summary="Get the map of a window",
    response_model=SeriesMap,
    responses=rejections(problems.NotFound, problems.JobNotFinished),
)
def get_series_map(
    asked: StudySeries,
    window: Annotated[
        Annotated[int, Field(ge=0, le=MAX_WINDOWS)] | SkipJsonSchema[None],
        Query(description="Number of the window. Default: the last one with a map."),
    ] = None,
    pooled: Annotated[
        bool, Query(description="Whether earlier windows count as well; false for the window alone.")
    ] = True,
) -> Response:
    """Return the map of a window. Its clusters have ids that persist over windows.

    In a pooled map each earlier window counts 0.9 times as much as the next one, and nothing before the last described
    change of the clusters. The tallies were released before, so the map costs nothing. Needs the scope `jobs`.
    """
    with asked.reading() as (session, found):
        index, document = following.get_map(session, found, window, pooled=pooled)
        return respond(document | {"window": index, "pooled": pooled})


@router.get(
    "/{series_id}/events", summary="List the events of a series", response_model=SeriesEventPage, responses=NOT_FOUND
)
def list_series_events(asked: StudySeries, page: RequestedPage) -> Response:
    """List the changes that raised an alarm, newest first.

    The test is valid at every window: without a change, the probability of an event in 52 windows is at most 1 in 20.
    Two windows later an event states what changed. An event is a change of the reported population, as a holiday
    or a new version of an app may cause it. Needs the scope `jobs`.
    """
    with asked.reading() as (session, found):
        rows = following.page_events(session, found, **page.bounds)
        return page.respond(rows, serializers.series_event)


def _serialised(session: Session, row: tables.Series) -> Json:
    return serializers.series(row, windows.next_window(session, row.id), windows.charged_nano(session, row))
