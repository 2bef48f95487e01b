"""Routes of results: the model, the label map, pictures, and labels of reports and points."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from models.errors import Conflict, JobNotFinished
from models.identity.caller import Caller
from models.jobs import jobs
from models.tables.identity import Scope
from models.tables.jobs import Job, JobState
from service.api.bodies import DocumentRoute
from service.api.dependencies import JSON_BODY, JobIdInPath, ReportPage, Services, rejections, respond
from service.http import problems
from service.http.auth import require
from service.http.headers import media_type
from service.ingestion.point_formats import READERS, PointLabeller
from service.ingestion.upload_memory import MemoryReservation, read_upload, run_parser
from service.schemas import serializers
from service.schemas.results import LabelKind, LabelsAnswer, PointLabels, Result, ResultChange
from sfumato.model.cluster_model import ClusterModel, model_from_wire

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"], route_class=DocumentRoute)

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_POINTS_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/Points"}},
        "application/octet-stream": _BINARY,
        "text/csv": _BINARY | {"examples": {"two": {"value": "longitude,latitude\n2.35,48.86\n-0.13,51.51\n"}}},
        "application/vnd.apache.arrow.stream": _BINARY,
        "application/vnd.apache.arrow.file": _BINARY,
    },
}

AnalystCaller = Annotated[Caller, Depends(require(Scope.JOBS))]


@router.get(
    "/result",
    summary="Get a job's result",
    response_model=Result,
    responses=rejections(problems.NotFound, problems.JobNotFinished),
)
def get_result(job_id: JobIdInPath, caller: AnalystCaller, services: Services) -> Response:
    """Return the result of a job. Reading it costs nothing, and only `names` ever change. Needs the scope `jobs`."""
    with services.database.reading() as session:
        return _respond(session, _succeeded(session, caller, job_id))


@router.patch(
    "/result",
    summary="Name the clusters of a result",
    response_model=Result,
    responses=rejections(problems.NotFound, problems.JobNotFinished, *JSON_BODY),
)
def update_result(job_id: JobIdInPath, body: ResultChange, caller: AnalystCaller, services: Services) -> Response:
    """Name the clusters of a result: one name for each cluster, in their order. An empty list removes all names.

    Names replace earlier ones and cost nothing. They are not part of the released document. Each reader of the result
    sees them, also in pictures and labels. A profile has the names of the clusters that it describes. A name must not
    reveal a single record.

    Needs the scope `jobs`.
    """

    def change(session: Session) -> Response:
        job = _succeeded(session, caller, job_id)
        with problems.pointing_at("/names"):
            jobs.name_clusters(session, caller, job, body.names, now=services.database.clock())
        return _respond(session, job)

    return services.database.run("name_clusters", change)


@router.get(
    "/labels",
    summary="Get the label map, or labels of reports",
    response_model=LabelsAnswer,
    responses=rejections(problems.NotFound, problems.JobNotFinished, problems.Conflict),
)
def get_labels(
    job_id: JobIdInPath,
    caller: AnalystCaller,
    services: Services,
    page: ReportPage,
    of: Annotated[
        LabelKind | SkipJsonSchema[None],
        Query(description="Object of the labels; if absent, cells for a label map and reports otherwise."),
    ] = None,
) -> Response:
    """Labels of cells: the cluster of every cell of the grid over the bounds.

    Labels of reports, in pages: if the dataset keeps reports, the most probable cluster of each report, computed from
    the published model and the report. They cost nothing and are inaccurate, because reports are perturbed. A device
    that labels its own record with the published model gets the exact label.

    Needs the scope `jobs`.
    """
    with services.database.reading() as session:
        _, document = jobs.get_released(session, _succeeded(session, caller, job_id))
        model = document["model"]
        if of == "cells" or (of is None and model["labels"] is not None):
            if model["labels"] is None:
                raise Conflict(
                    "this result has centroids and no label map; label points with POST /v1/jobs/{id}/assign"
                )
            return respond({"type": "cells"} | {name: model[name] for name in ("grid_shape", "labels", "names")})
        if (profile := document.get("profile")) is not None:
            raise Conflict(f"a profile has no labels of reports: name the job of its clusters, {profile['of']}")
        labels, last = services.labellers.page(session, job_id, document, page.after_place, page.limit)
        next_cursor = None if last is None else ".".join(map(str, last))
        return respond(labels | {"next_cursor": next_cursor, "names": model["names"]})


@router.get(
    "/plot.svg",
    summary="Get a picture of the result",
    response_class=Response,
    responses=rejections(problems.NotFound, problems.JobNotFinished)
    | {200: {"description": "The picture.", "content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
def get_plot(job_id: JobIdInPath, caller: AnalystCaller, services: Services) -> Response:
    """Return density, cluster borders and centres as SVG. The bytes are the same on every request.

    Ellipses show the 95 % confidence regions of the centres with respect to the noise. If the features are longitude
    and latitude in degrees, coasts, a graticule and a scale are drawn. The picture follows from the result and costs
    nothing.

    Needs the scope `jobs`.
    """
    from sfumato.plotting import figures  # loads matplotlib

    model, caption = _pictured(services, caller, job_id)
    return Response(
        figures.svg(model, caption=caption),
        media_type="image/svg+xml",
        headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


@router.get(
    "/plot.png",
    summary="Get a picture of the result as PNG",
    response_class=Response,
    responses=rejections(problems.NotFound, problems.JobNotFinished)
    | {
        200: {
            "description": "The picture, 1200 pixels wide.",
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
def get_plot_png(job_id: JobIdInPath, caller: AnalystCaller, services: Services) -> Response:
    """Return the picture of `getPlot` as PNG. The bytes are the same on every request. Needs the scope `jobs`."""
    from sfumato.plotting import figures

    model, caption = _pictured(services, caller, job_id)
    return Response(
        figures.png(model, caption=caption),
        media_type="image/png",
        headers={"content-security-policy": "default-src 'none'"},
    )


def _pictured(services: Services, caller: Caller, job_id: str) -> tuple[ClusterModel, str]:
    """Return the model and the heading of its picture."""
    from sfumato.plotting import figures

    document = _document(services, caller, job_id)
    model = _model(document)
    n_reports = sum(used["n_reports"] for used in document["rounds"]) or None  # None over records
    return model, figures.describe(model, epsilon=serializers.epsilon(document["epsilon_nano"]), n_reports=n_reports)


@router.post(
    "/assign",
    summary="Label points",
    response_model=PointLabels,
    responses=rejections(problems.NotFound, problems.JobNotFinished, problems.Unavailable, *JSON_BODY),
    openapi_extra={"requestBody": _POINTS_BODY},
)
async def assign_points(request: Request, job_id: JobIdInPath, caller: AnalystCaller, services: Services) -> Response:
    """Return the cluster of each point, in the units of the features.

    Points are not stored. `ClusterModel.assign` of the SDK does the same without sending points. A request has at most
    1,000,000 points and 32 MiB.

    - `application/json`: `points`, one list per point; or `columns` and `rows`, as in an upload of records.
    - `application/octet-stream`: packed float64, little-endian, one point after the other, features in order.
    - `text/csv`: as in an upload of records.
    - `application/vnd.apache.arrow.stream` or `application/vnd.apache.arrow.file`: one numeric column per feature,
      uncompressed.

    If attributes formed the clusters, a point has the share of each category: 1 for that of the record, and 0 for the
    others. With named columns, send the values of each attribute instead: the columns are the numeric features and
    these attributes. An unknown or missing value is accepted as the attribute declares.

    Needs the scope `jobs`.
    """
    kind = media_type(request.scope)
    model = await run_in_threadpool(lambda: _model(_document(services, caller, job_id)))
    if kind not in READERS:
        accepted = ", ".join(each.decode() for each in READERS)
        raise problems.UnsupportedMediaType(f"the content type is not supported: send one of {accepted}")
    with MemoryReservation(services.body_memory) as reservation:
        labeller = PointLabeller(model, reservation.grow)
        await read_upload(request.stream(), READERS[kind](labeller))
        return Response(await run_parser(labeller.document), media_type="application/json")


def _succeeded(session: Session, caller: Caller, job_id: str) -> Job:
    """Return a job unless it has ended without a result."""
    job = jobs.get(session, caller, job_id)
    if job.is_final and job.state != JobState.SUCCEEDED:
        reason = f": {job.error_detail}" if job.error_detail else ""
        raise JobNotFinished(f"this job ended as {job.state} and has no result{reason}")
    return job


def _respond(session: Session, job: Job) -> Response:
    result, document = jobs.get_released(session, job)
    return respond(serializers.result(result, document, job))


def _document(services: Services, caller: Caller, job_id: str) -> dict[str, Any]:
    with services.database.reading() as session:
        return jobs.get_released(session, _succeeded(session, caller, job_id))[1]


def _model(document: dict[str, Any]) -> ClusterModel:
    return model_from_wire(document["model"])
