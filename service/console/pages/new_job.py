"""Pages for a new job: the choice of an algorithm, its form with a forecast, and the confirmation of its cost."""

from fractions import Fraction
from math import inf
from typing import cast
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from service.console.curves import curves_of
from service.console.forms import (
    Json,
    algorithm,
    collect_errors,
    describe_algorithms,
    fields,
    group_algorithms,
    parse_number,
    parse_seconds,
)
from service.console.rendering import amount, redirect, show
from service.console.request import Page, Visit
from service.http.mount import mounted
from service.http.problems import NotFound, Problem
from service.schemas.algorithms import SCHEMAS
from service.schemas.fields import DEFAULT_RELEASE_DELTA
from sfumato.api.parsers import parse_budget
from sfumato.errors import SfumatoError
from sfumato.forecast import forecast_release_mu2, forecast_releases, resolve_central
from sfumato.forecast.families import FAMILIES
from sfumato.privacy.accountant import Cost, count_jobs, count_releases
from sfumato.privacy.accounting import EPSILON_MAX_NANO, NANO, format_delta, parse_delta
from sfumato.records.mixed import count_categories
from sfumato.sizing.job_costs import job_cost
from sfumato.sizing.required_reports import planned_features
from sfumato.specs import ALGORITHMS, MAX_FEATURES, Auto, CentralAlgorithm, local_algorithm_from_wire, to_algorithm
from sfumato.specs.attributes import Categorical, attributes_from_wire, clustering_attributes

DAY_SECONDS = 86_400
_COLLECTION = ("target_reports", "min_reports", "collect_days")
_RELEASES = ("min_batch", "honest_share", "shuffled_delta")
_PROPOSABLE = (
    *sorted({name for each in SCHEMAS.values() for name in each.model_fields}),
    *_COLLECTION,
    *_RELEASES,
    "features",
)
_OWN = frozenset({"csrf", "once", "step", "feature"})  # form fields that are not part of the job


async def chooser(visit: Visit) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/jobs/new`: the algorithms, or with `?type=` the form of one.

    Further query parameters fill the form, so that a link can propose a job. The form still has to be confirmed.
    """
    dataset = await _dataset(visit)
    tag = visit.query_value("type")
    about = describe_algorithms(dataset["trust"])
    if tag in about:
        names = [*(each["name"] for each in fields(tag)), *_COLLECTION, *_RELEASES]
        values = {name: visit.query_value(name) for name in names if visit.query_value(name)}
        if chosen := visit.request.query_params.getlist("features"):
            names = [each["name"] for each in columns(dataset)]
            values["features"] = ",".join(str(place) for place, name in enumerate(names) if name in chosen)
        return await _form(visit, dataset, values | {"type": tag})
    has_circles = any(each.get("periodic") for each in dataset["features"] if isinstance(each, dict))
    on_lines = [tag for tag in about if has_circles and not ALGORITHMS[tag].definition.periodic]
    return show(visit, "new_job.html", dataset=dataset, about=about, groups=group_algorithms(about), on_lines=on_lines)


def duplicate_link(job: Json) -> str:
    """Return the link to the form of a new job with the parameters of this job."""
    if job["algorithm"]["type"] == "profile":
        return mounted(f"/console/jobs/{job['algorithm']['of']}/profile")
    values = {name: value for name, value in job["algorithm"].items() if value is not None}
    if job["target_reports"] is not None:
        values |= {"target_reports": job["target_reports"], "min_reports": job["min_reports"]}
        values["collect_days"] = amount(job["collect_seconds"] / DAY_SECONDS)
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    texts |= {} if job["features"] is None else {"features": job["features"]}
    return mounted(f"/console/datasets/{job['dataset_id']}/jobs/new?{urlencode(texts, doseq=True)}")


async def forecast_fragment(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/jobs/forecast`: the forecast for the current form."""
    dataset, values = await _dataset(visit), _form_values(visit)
    forecast, problem = await _forecast(visit, dataset, values)
    budget = await visit.api.get_existing(f"/datasets/{dataset['id']}/budget")
    cost = await run_in_threadpool(_describe_cost, values, dataset, budget)
    return show(visit, "forecast.html", forecast=forecast, refusal=collect_errors(problem), cost=cost, dataset=dataset)


async def submit(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/jobs`: forecast, confirm or submit, depending on the button."""
    dataset, values, step = await _dataset(visit), _form_values(visit), visit.form_value("step")
    if step != "submit":
        return await _form(visit, dataset, values, step=step)
    try:
        job = await visit.api.post("/jobs", _job(dataset, values), once=visit.form_value("once"))
    except Problem as problem:
        return await _form(visit, dataset, values, problem=problem)
    return redirect(f"/jobs/{job['id']}")


async def _dataset(visit: Visit) -> Json:
    return await visit.api.get(f"/datasets/{visit.id('dataset_id')}")


def _form_values(visit: Visit) -> dict[str, str]:
    values = {name: visit.form_value(name) for name in visit.form if name not in _OWN}
    if boxes := visit.form.get("feature"):  # the first is empty, so that a form without a tick differs from no boxes
        values["features"] = ",".join(filter(None, boxes))
    return values


def columns(dataset: Json) -> list[Json]:
    """Return the features and clustering attributes that the form of a job offers as boxes, with their positions.

    Over reports, it offers the attribute alone, because devices report all features.
    """
    if not isinstance(dataset["features"], list):
        return []
    forming = [each for each in dataset["attributes"] if each["use"] == "cluster"]
    if dataset["trust"] != "central":
        return forming
    offered = dataset["features"] + forming
    return offered if 1 < len(offered) <= MAX_FEATURES else []


def _chosen(dataset: Json, values: dict[str, str]) -> list[str] | None:
    """Return the names of the ticked features, or None if all are."""
    offered = columns(dataset)
    if "features" not in values or not offered:
        return None
    ticked = set(values["features"].split(","))
    names = [each["name"] for place, each in enumerate(offered) if str(place) in ticked]
    if len(names) == len(offered):
        return None
    always = [] if dataset["trust"] == "central" else [each["name"] for each in dataset["features"]]
    return always + names


def _numeric_places(dataset: Json) -> str:
    """Return the places of the columns that are features, as the form lists ticked columns."""
    return ",".join(str(place) for place, each in enumerate(columns(dataset)) if each.get("use") != "cluster")


async def _form(
    visit: Visit, dataset: Json, values: dict[str, str], *, step: str = "", problem: Problem | None = None
) -> Response:
    tag = values.get("type", "")
    about = describe_algorithms(dataset["trust"])
    if tag not in about:
        raise NotFound("the dataset does not support this algorithm")
    takes_categories = tag == Auto.type or ALGORITHMS[tag].definition.max_attributes > 0
    if not takes_categories and "features" not in values:
        values = values | {"features": _numeric_places(dataset)}
    budget = await visit.api.get_existing(f"/datasets/{dataset['id']}/budget")
    forecast = None
    if step:
        forecast, problem = await _forecast(visit, dataset, values)
    is_confirmed = step == "review" and problem is None and (forecast is not None or dataset["trust"] == "central")
    return show(
        visit,
        "confirm_job.html" if is_confirmed else "job_form.html",
        problem,
        dataset=dataset,
        algorithm={"tag": tag, "about": about[tag]},
        fields=fields(tag),
        families=FAMILIES,
        columns=columns(dataset),
        takes_categories=takes_categories,
        values=values,
        budget=budget,
        forecast=forecast,
        cost=await run_in_threadpool(_describe_cost, values, dataset, budget),
        job=_job(dataset, values) if is_confirmed else None,
    )


async def _forecast(visit: Visit, dataset: Json, values: dict[str, str]) -> tuple[Json | None, Problem | None]:
    """Return the forecast or the problem of the API. Return neither if required fields are empty."""
    expected = values.get("target_reports" if dataset["trust"] != "central" else "expected_records", "")
    if not expected or not (values.get("epsilon") or values.get("mu")):
        return None, None
    body: Json = {"dataset_id": dataset["id"], "algorithm": algorithm(values["type"], values)}
    body["expected_reports" if dataset["trust"] != "central" else "expected_records"] = parse_number(expected)
    if values.get("family"):
        body["family"] = values["family"]
    if values.get("occupied_share"):
        body["occupied_share"] = parse_number(values["occupied_share"])
    if (names := _chosen(dataset, values)) is not None:
        body["job_features"] = names
    try:
        forecast = await visit.api.post("/forecasts", body)
    except Problem as problem:
        return None, problem
    budget = await visit.api.get_existing(f"/datasets/{dataset['id']}/budget")
    left = inf if budget is None else budget["remaining"]
    by = () if dataset["trust"] == "central" else _forming(dataset, values)
    return forecast | {"curves": await run_in_threadpool(_curves, dataset, body, forecast, left, by)}, None


def _curves(dataset: Json, body: Json, forecast: Json, left: float, by: tuple[Categorical, ...]) -> Json:
    """Return the curves of a forecast, with advice within the epsilon that is left.

    Over reports, `auto` selects an algorithm for each point.
    """
    requested = body["algorithm"]
    if forecast["trust"] == "local":
        size, noun = forecast["expected_reports"], "devices"
    else:
        requested, size, noun = forecast["algorithm"], forecast["expected_records"], "records"
    return curves_of(
        requested,
        n_features=forecast["n_features"],
        size=size,
        max_records_per_user=dataset["max_records_per_user"] or 1,
        noun=noun,
        family=body.get("family"),
        attributes=by,
        most_epsilon=left,
        states_size=bool(forecast.get("insufficient") or forecast["warnings"]),
    )


def _job(dataset: Json, values: dict[str, str]) -> Json:
    """Return the job that the form describes, as an API request."""
    body: Json = {"dataset_id": dataset["id"], "algorithm": algorithm(values.get("type", ""), values)}
    if (names := _chosen(dataset, values)) is not None:
        body["features"] = names
    if dataset["trust"] != "central":
        of_releases = _RELEASES if dataset["trust"] == "shuffled" else ()
        for name in ("target_reports", "min_reports", *of_releases):
            if values.get(name):
                body[name] = parse_number(values[name])
        body["collect_seconds"] = parse_seconds(values.get("collect_days") or "7", DAY_SECONDS)
        body["allow_insufficient"] = values.get("allow_insufficient") == "true"
    return body


def _describe_cost(values: dict[str, str], dataset: Json, budget: Json | None) -> Json | None:
    """Return the cost of the job and the remaining budget as text, or None if epsilon is not a number."""
    if values.get("mu") and budget is not None and budget["accounting"] == "gaussian":
        return _describe_share(values, dataset, budget)
    epsilon = parse_number(values.get("epsilon", ""))
    is_valid = isinstance(epsilon, int | float) and 0 < NANO * epsilon <= EPSILON_MAX_NANO
    if not is_valid or values.get("type") not in SCHEMAS:
        return None
    unit = "device that sends a report" if dataset["trust"] != "central" else "person in the dataset"
    releases = _describe_releases(values, dataset, budget) if dataset["trust"] == "shuffled" else ""
    if budget is None:
        return {"text": f"This job spends at most ε {amount(epsilon)} for each {unit}.{releases}", "is_over": False}
    if budget["accounting"] == "gaussian" and dataset["trust"] == "central":
        return _describe_share(values, dataset, budget)
    remaining = budget["remaining"]
    if epsilon > remaining:
        text = f"This job would spend ε {amount(epsilon)}, but {amount(remaining)} remains. It will be rejected."
        return {"text": text, "is_over": True}
    text = (
        f"This job spends at most ε {amount(epsilon)} of the remaining ε {amount(remaining)} for each {unit}.{releases}"
    )
    return {"text": text, "is_over": False}


def _describe_share(values: dict[str, str], dataset: Json, budget: Json) -> Json | None:
    """Return how many jobs like this one the Gaussian budget allows, or None if the form is not complete."""
    names, features = _chosen(dataset, values), dataset["features"]
    if isinstance(features, dict):
        n_features = features["dimensions"]
    else:
        ticked = [each for each in features if names is None or each["name"] in names]
        n_features = planned_features(len(ticked), count_categories(_forming(dataset, values)))
    try:
        requested = to_algorithm(algorithm(values["type"], values))
        if dataset["trust"] not in requested.definition.trust:
            return None
        chosen, _ = resolve_central(cast("CentralAlgorithm | Auto", requested), n_features)
        job = job_cost(chosen, n_features, dataset["max_records_per_user"])
    except (ValueError, OverflowError, SfumatoError):
        return None
    of, used = parse_budget(budget).balance.granted_cost, parse_budget(budget).balance.used_cost
    n_left, n_all = count_jobs("gaussian", of, used, job), count_jobs("gaussian", of, Cost(0, 0, 0), job)
    if not n_left:
        text = f"No job like this one remains, of {n_all:,} in all. It will be rejected."
        return {"text": text, "is_over": True}
    return {
        "text": f"This job costs 1 of the {n_left:,} jobs like it that remain, of {n_all:,} in all.",
        "is_over": False,
    }


def _forming(dataset: Json, values: dict[str, str]) -> tuple[Categorical, ...]:
    """Return the attributes by which the job of a form clusters."""
    names = _chosen(dataset, values)
    by = clustering_attributes(attributes_from_wire(dataset["attributes"]))
    return tuple(each for each in by if names is None or each.name in names)


def _describe_releases(values: dict[str, str], dataset: Json, budget: Json | None) -> str:
    """Return sentences about the cost of a job's releases, or nothing if the form has no valid values for it."""
    try:
        requested = local_algorithm_from_wire(algorithm(values["type"], values))
        terms: Json = {
            "n_features": len(dataset["features"]),
            "expected_reports": int(values.get("target_reports", "")),
            "min_batch": int(values.get("min_batch", "")),
            "honest_share": Fraction(repr(float(values.get("honest_share", "")))),
            "delta_atto": parse_delta(values.get("shuffled_delta") or DEFAULT_RELEASE_DELTA),
            "circles": tuple(place for place, each in enumerate(dataset["features"]) if each.get("periodic")),
            "attributes": _forming(dataset, values),
        }
        epsilon_nano, delta_atto = forecast_releases(requested, **terms)
        is_gaussian = dataset["accounting"] == "gaussian"
        job = Cost(epsilon_nano, delta_atto, forecast_release_mu2(requested, **terms) if is_gaussian else 0)
    except (ValueError, OverflowError, SfumatoError):
        return ""
    text = f" Its releases spend ε {amount(epsilon_nano / NANO)} and δ {format_delta(delta_atto)} towards the service."
    if budget is None:
        return text
    balance = parse_budget(budget).balance
    granted, none = balance.granted_release_cost, Cost(0, 0, 0)
    n_all, n_left = (
        count_releases(balance.release_accounting, granted, used, job) for used in (none, balance.release_cost)
    )
    return f"{text} Of {n_all:,} such jobs, the budget towards the service allows {n_left:,} more."


PAGES: list[Page] = [
    Page("GET", "/datasets/{dataset_id}/jobs/new", chooser, _PROPOSABLE),
    Page("POST", "/datasets/{dataset_id}/jobs/forecast", forecast_fragment),
    Page("POST", "/datasets/{dataset_id}/jobs", submit),
]
