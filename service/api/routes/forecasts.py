"""Routes of forecasts."""

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Response

from models import datasets
from models.identity.caller import Caller
from models.jobs import jobs
from models.ledger import ledger
from models.ledger.amounts import Balance
from models.tables.datasets import Trust
from models.tables.identity import Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import JSON_BODY, Services, rejections, respond
from service.api.job_submission import (
    forecast_described,
    is_shuffled,
    read_release_terms,
    release_terms,
    require_algorithm,
    require_features_alone,
    require_mu_accounting,
)
from service.context import GatewayContext
from service.http import problems
from service.http.auth import require
from service.schemas.algorithms import algorithm_to_domain
from service.schemas.features import features_to_domain
from service.schemas.forecasts import AnyForecast, NewForecast, NewProfileForecast, ProfileForecast
from service.schemas.series_forecasts import NewSeriesForecast, SeriesForecast
from sfumato.forecast import (
    SeriesRelease,
    forecast,
    forecast_records,
    forecast_series,
    forecast_to_wire,
    profile_forecast_to_wire,
    records_forecast_to_wire,
    reports_needed,
    resolve,
    resolve_central,
    series_forecast_to_wire,
)
from sfumato.privacy.accountant import Cost, count_jobs
from sfumato.privacy.accounting import NANO
from sfumato.sizing.job_costs import job_cost
from sfumato.specs import (
    Auto,
    CentralAlgorithm,
    Feature,
    central_algorithm_from_wire,
    check_periodic,
    circles_of,
    local_algorithm_from_wire,
    profile_from_wire,
    to_series_algorithm,
)
from sfumato.specs.attributes import Categorical

router = APIRouter(prefix="/v1/forecasts", tags=["forecasts"], route_class=DocumentRoute)

AnalystCaller = Annotated[Caller, Depends(require(Scope.JOBS))]


@router.post(
    "",
    summary="Forecast an algorithm",
    response_model=AnyForecast,
    responses=rejections(problems.NotFound, problems.Conflict, *JSON_BODY),
)
def create_forecast(body: NewForecast, caller: AnalystCaller, services: Services) -> Response:
    """Forecast the cost, the errors and the quality of an algorithm from public facts.

    A forecast can also state the number of reports that a target needs. Over records, it forecasts the cost and
    the loss relative to k-means without noise, for the number of records that you assume.

    A forecast reads no data, costs nothing and stores nothing. The same request always has the same response, but for
    the number of jobs that remain. Needs the scope `jobs`; for the numbers of jobs also `ledger` or `grants`.
    """
    features, n_features, max_per_user, balance, attributes = _dimensions(body, caller, services)
    wire = body.algorithm.model_dump()
    if body.expected_records is not None:
        central = central_algorithm_from_wire(wire)
        check_periodic(resolve_central(central, n_features)[0], features)
        over_records = forecast_records(
            central,
            n_features=n_features,
            expected_records=body.expected_records,
            max_records_per_user=max_per_user,
            family=body.family,
            occupied_share=body.occupied_share,
        )
        if balance is not None:
            of, used = balance.granted_cost, balance.used_cost
            job = job_cost(over_records.algorithm, n_features, max_per_user)
            n_all, n_left = (count_jobs(balance.own_accounting, of, each, job) for each in (Cost(0, 0, 0), used))
            over_records = replace(over_records, jobs_granted=n_all, jobs_remaining=n_left)
        return respond(records_forecast_to_wire(over_records))
    algorithm = local_algorithm_from_wire(wire)
    n_reports = body.expected_reports or 0
    check_periodic(resolve(algorithm, n_features, n_reports, attributes)[0], features)
    circles = circles_of(features)
    made = forecast(
        algorithm,
        n_features=n_features,
        expected_reports=n_reports,
        family=body.family,
        circles=circles,
        attributes=attributes,
    )
    if body.target is not None:
        target = body.target.model_dump()
        made = replace(made, needed=reports_needed(algorithm, n_features, **target, attributes=attributes))
    return respond(forecast_to_wire(made))


@router.post(
    "/profiles",
    summary="Forecast a profile",
    response_model=ProfileForecast,
    responses=rejections(problems.NotFound, problems.Conflict, *JSON_BODY),
)
def create_profile_forecast(body: NewProfileForecast, caller: AnalystCaller, services: Services) -> Response:
    """Forecast the errors of a profile of a job's clusters, from the released sizes and an assumed number of people.

    The number is `expected_records` over records, and `expected_reports` over reports. A forecast reads no records and
    no reports, costs nothing and stores nothing. Needs the scope `jobs`.
    """
    params = profile_from_wire(body.algorithm.model_dump())
    with services.database.reading() as session:
        of = jobs.get(session, caller, params.of)
        dataset = datasets.get(session, caller, of.dataset_id)
        over_records = dataset.trust == Trust.CENTRAL
        name, other = ("expected_records", "expected_reports")[:: 1 if over_records else -1]
        if getattr(body, name) is None or getattr(body, other) is not None:
            message = f"required for this {dataset.trust} dataset, instead of {other}"
            raise problems.ValidationFailed(errors=[{"pointer": f"/{name}", "message": message}])
        with problems.pointing_at("/algorithm/attributes"):
            dataset.describe(params.attributes)
        sizes = jobs.get_result(session, of.id).document["model"]["sizes"]
    with problems.pointing_at("/algorithm"):
        found = forecast_described(params, sizes, dataset, getattr(body, name))
    return respond(profile_forecast_to_wire(found))


@router.post(
    "/series",
    summary="Forecast a series",
    response_model=SeriesForecast,
    responses=rejections(problems.NotFound, problems.Conflict, *JSON_BODY),
)
def create_series_forecast(body: NewSeriesForecast, caller: AnalystCaller, services: Services) -> Response:
    """Forecast what a series costs one person, and which changes it finds, before it exists.

    A forecast reads no data, costs nothing and stores nothing. Needs the scope `jobs`.
    """
    algorithm = to_series_algorithm(body.algorithm.model_dump())
    n_features, accounting, max_per_user = body.n_features or 0, "additive", body.max_records_per_user or 1
    circles: tuple[int, ...] = ()
    if body.dataset_id is not None:
        with services.database.reading() as session:
            dataset = datasets.get(session, caller, body.dataset_id)
            require_algorithm(dataset, algorithm)
            require_features_alone(dataset)
            n_features, accounting, max_per_user = dataset.n_features, dataset.accounting, dataset.max_records_per_user
            circles = circles_of(dataset.features)
            release = release_terms(dataset, body)
    else:
        release = read_release_terms(body) if is_shuffled(body) else None
    found = forecast_series(
        algorithm,
        n_features=n_features,
        target_reports=body.target_reports,
        cycle=body.cycle,
        every=body.every,
        least_change=body.least_change,
        cluster_width=body.cluster_width,
        max_records_per_user=max_per_user,
        release=None
        if release is None
        else SeriesRelease(
            release.min_batch, Fraction(release.honest_share_nano, NANO), release.delta_atto, accounting == "gaussian"
        ),
        circles=circles,
    )
    return respond(series_forecast_to_wire(found))


def _dimensions(
    body: NewForecast, caller: Caller, services: GatewayContext
) -> tuple[tuple[Feature, ...], int, int, Balance | None, tuple[Categorical, ...]]:
    """Return the features, their number, the maximal records per user, the budget if the key may read it, attributes.

    The features are empty if the body has only their number, or vectors.
    """
    if body.dataset_id is not None:
        with services.database.reading() as session:
            dataset = datasets.get(session, caller, body.dataset_id)
            fit = (Trust.LOCAL, Trust.SHUFFLED) if body.expected_records is None else (Trust.CENTRAL,)
            datasets.require_trust(dataset, *fit)
            with problems.pointing_at("/job_features"):
                columns = dataset.select(body.job_features)
                features = tuple(dataset.features[place] for place in columns.positions)
            if body.expected_records is not None:
                algorithm = algorithm_to_domain(body.algorithm)
                require_mu_accounting(dataset, algorithm)
                chosen, _ = resolve_central(cast("CentralAlgorithm | Auto", algorithm), columns.n_planned)
                chosen.require_attributes(columns.attributes)
            reads_budget = caller.may(Scope.LEDGER) or caller.may(Scope.GRANTS)
            balance = ledger.balance(session, dataset.id) if reads_budget else None
            return features, columns.n_planned, dataset.max_records_per_user, balance, columns.attributes
    listed = features_to_domain(body.features) if isinstance(body.features, list) else ()
    features = listed if isinstance(listed, tuple) else ()
    return features, body.count_features(), body.max_records_per_user or 1, None, ()
