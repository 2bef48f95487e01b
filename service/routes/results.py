"""Results: the released model, its label map, its picture, and labels for reports and for points the caller holds."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import job as jobs
from models import result as results
from models.errors import Conflict, JobNotFinished
from models.job import Job, JobState
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import JobIdInPath, PageHere, ServicesHere, cursor_of, respond
from service.job_resources import LabelsAnswer, PointLabels, Points, Result
from service.problems import documented
from sfumato.cluster_model import ClusterModel, model_from_wire

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"])

AnalystHere = Annotated[Caller, Depends(require(Scope.JOBS))]

_DENIED = (problems.Unauthenticated, problems.Forbidden, problems.NotFound, problems.JobNotFinished)


@router.get(
    "/result",
    operation_id="getResult",
    summary="Get a job's result",
    response_model=Result,
    responses=documented(*_DENIED),
)
def get_result(job_id: JobIdInPath, caller: AnalystHere, services: ServicesHere) -> Response:
    """What the job released: written once, free to read for ever. Needs the scope `jobs`."""
    with services.database.reading() as session:
        job, result = _result(session, caller, job_id)
        return respond(views.result(result, job))


@router.get(
    "/labels",
    operation_id="getLabels",
    summary="Get the label map, or labels of reports",
    response_model=LabelsAnswer,
    responses=documented(*_DENIED, problems.Conflict, problems.ValidationFailed),
)
def get_labels(
    job_id: JobIdInPath,
    caller: AnalystHere,
    services: ServicesHere,
    page: PageHere,
    of: Annotated[
        Literal["cells", "reports"] | SkipJsonSchema[None],
        Query(description="What is labelled; left out, cells where the result has a label map, else reports."),
    ] = None,
) -> Response:
    """Of cells: the cluster of every cell of the grid over the bounds, or of every symbol of the result's encoding.

    Of reports, in pages: where the dataset keeps reports, the likeliest cluster of each one by the published model
    and the report alone. It costs nothing more, and says little: reports are blurred so that nobody can tell. Devices
    that label their own records with the published model do it right.

    Needs the scope `jobs`.
    """
    with services.database.reading() as session:
        document = _result(session, caller, job_id)[1].document
        model = document["model"]
        if of == "cells" or (of is None and model["labels"] is not None):
            if model["labels"] is None:
                raise Conflict("this result has centroids and no label map")
            return respond({"type": "cells", "grid_shape": model["grid_shape"], "labels": model["labels"]})
        labels, last = services.labellers.page(session, job_id, document, page.after_place, page.limit)
        next_cursor = None if last is None else cursor_of(".".join(map(str, last)))
        return respond(labels | {"next_cursor": next_cursor})


@router.get(
    "/plot.svg",
    operation_id="getPlot",
    summary="Get a picture of the result",
    response_class=Response,
    responses=documented(*_DENIED)
    | {200: {"description": "The picture.", "content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
def get_plot(job_id: JobIdInPath, caller: AnalystHere, services: ServicesHere) -> Response:
    """Density, cluster borders and centres as SVG; of codes, the sizes; the same bytes every time.

    Ellipses hold centres with 95 % confidence, as far as the noise goes. Where the features are longitude and latitude
    in degrees, coasts, a graticule and a scale are drawn too. All of it follows from the result and costs nothing.

    Needs the scope `jobs`.
    """
    from sfumato import plot  # the first picture loads matplotlib

    model, caption = _pictured(services, caller, job_id)
    return Response(
        plot.svg(model, caption=caption),
        media_type="image/svg+xml",
        headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


@router.get(
    "/plot.png",
    operation_id="getPlotPng",
    summary="Get a picture of the result as PNG",
    response_class=Response,
    responses=documented(*_DENIED)
    | {
        200: {
            "description": "The picture, 1200 pixels wide.",
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
def get_plot_png(job_id: JobIdInPath, caller: AnalystHere, services: ServicesHere) -> Response:
    """The picture of `getPlot` as PNG; the same bytes every time. Needs the scope `jobs`."""
    from sfumato import plot

    model, caption = _pictured(services, caller, job_id)
    return Response(
        plot.png(model, caption=caption),
        media_type="image/png",
        headers={"content-security-policy": "default-src 'none'"},
    )


def _pictured(services: ServicesHere, caller: Caller, job_id: str) -> tuple[ClusterModel, str]:
    """The model, and what stands above its picture."""
    from sfumato import plot

    document = _document(services, caller, job_id)
    model = _model(document)
    n_reports = sum(used["n_reports"] for used in document["rounds"]) or None  # none: over records
    return model, plot.describe(model, epsilon=views.epsilon(document["epsilon_nano"]), n_reports=n_reports)


@router.post(
    "/assign",
    operation_id="assignPoints",
    summary="Label points",
    response_model=PointLabels,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.ValidationFailed, problems.PayloadTooLarge,
        problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def assign_points(job_id: JobIdInPath, body: Points, caller: AnalystHere, services: ServicesHere) -> Response:
    """The cluster of each point, in the features' units. The points are used for the answer and not stored;
    with the result at hand, `ClusterModel.assign` of the SDK does the same without sending them.

    Needs the scope `jobs`.
    """
    model = _model(_document(services, caller, job_id))
    labels = model.assign(body.points).tolist() if body.points else []
    return respond({"labels": labels})


def _result(session: Session, caller: Caller, job_id: str) -> tuple[Job, results.Result]:
    job = jobs.get(session, caller, job_id)
    if job.is_final and job.state != JobState.SUCCEEDED:
        raise JobNotFinished(f"this job is over ({job.state}) and will have no result")
    return job, results.get(session, job_id)


def _document(services: ServicesHere, caller: Caller, job_id: str) -> dict[str, Any]:
    with services.database.reading() as session:
        return _result(session, caller, job_id)[1].document


def _model(document: dict[str, Any]) -> ClusterModel:
    return model_from_wire(document["model"])
