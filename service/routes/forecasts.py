"""Forecasts: what an algorithm will cost and bring, before anything is spent."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from models import dataset as datasets
from models.dataset import Trust
from models.tenant import Caller, Scope
from service import problems
from service.auth import require
from service.dependencies import ServicesHere, respond
from service.forecast_resources import AnyForecast, NewForecast
from service.problems import documented
from service.services import Services
from sfumato.forecast import (
    forecast,
    forecast_records,
    forecast_to_wire,
    records_forecast_to_wire,
    reports_needed,
)
from sfumato.specs import central_algorithm_from_wire, local_algorithm_from_wire

router = APIRouter(prefix="/v1/forecasts", tags=["forecasts"])

AnalystHere = Annotated[Caller, Depends(require(Scope.JOBS))]


@router.post(
    "",
    operation_id="createForecast",
    summary="Forecast an algorithm",
    response_model=AnyForecast,
    responses=documented(
        problems.Unauthenticated, problems.Forbidden, problems.BadRequest, problems.NotFound, problems.Conflict,
        problems.ValidationFailed, problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_forecast(body: NewForecast, caller: AnalystHere, services: ServicesHere) -> Response:
    """Cost, noise and expected quality, and how many reports a wish needs: from public facts alone. Over records,
    cost, and how near k-means without noise it will come with as many records as you guess.

    Nothing is looked at, spent or stored, so the same question has the same answer. Needs the scope `jobs`.
    """
    n_features, max_per_user = _asked_about(body, caller, services)
    wire = body.algorithm.model_dump()
    if body.expected_records is not None:
        over_records = forecast_records(
            central_algorithm_from_wire(wire),
            n_features=n_features,
            expected_records=body.expected_records,
            max_records_per_user=max_per_user,
        )
        return respond(records_forecast_to_wire(over_records))
    algorithm = local_algorithm_from_wire(wire)
    made = forecast(algorithm, n_features=n_features, expected_reports=body.expected_reports or 0)
    if body.wanted is not None:
        made = replace(made, needed=reports_needed(algorithm, n_features, **body.wanted.model_dump()))
    return respond(forecast_to_wire(made))


def _asked_about(body: NewForecast, caller: Caller, services: Services) -> tuple[int, int]:
    """How many features, and how many records a user may have."""
    if body.dataset_id is not None:
        with services.database.reading() as session:
            dataset = datasets.get(session, caller, body.dataset_id)
            datasets.require_trust(dataset, Trust.LOCAL if body.expected_records is None else Trust.CENTRAL)
            return len(dataset.features), dataset.max_records_per_user
    return body.n_features or len(body.features or []), body.max_records_per_user or 1
