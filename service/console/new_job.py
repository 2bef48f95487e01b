"""A new job: an algorithm is chosen, its cost and worth are forecast, and what it spends is said before it does."""

from typing import Any

from starlette.responses import Response

from service.console.forms import SCHEMAS, algorithm, fields, numeric, offered, refused
from service.console.rendering import amount, go, show
from service.console.visits import Page, Visit
from service.problems import NotFound, Problem

DAY_SECONDS = 86_400
_OWN = frozenset({"csrf", "once", "step"})  # fields of the form's, not of the job's

Json = dict[str, Any]


async def chooser(visit: Visit) -> Response:
    """`GET /console/datasets/{dataset_id}/jobs/new`: the algorithms; with `?type=` the form of one."""
    dataset = await _dataset(visit)
    tag = visit.asked("type")
    if tag in {each["tag"] for each in offered(dataset["trust"])}:
        return await _form(visit, dataset, {"type": tag})
    return show(visit, "new_job.html", dataset=dataset, algorithms=offered(dataset["trust"]))


async def forecast_fragment(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/jobs/forecast`: the forecast alone, while the form is filled."""
    dataset, said = await _dataset(visit), _said(visit)
    forecast, problem = await _forecast(visit, dataset, said)
    budget = await visit.api.get_there(f"/datasets/{dataset['id']}/budget")
    spends = _in_words(said, dataset, budget)
    return show(visit, "forecast.html", forecast=forecast, refusal=refused(problem), spends=spends, dataset=dataset)


async def submit(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/jobs`: forecasts, asks, or submits, as its button says."""
    dataset, said, step = await _dataset(visit), _said(visit), visit.said("step")
    if step != "submit":
        return await _form(visit, dataset, said, step=step)
    try:
        job = await visit.api.post("/jobs", _job(dataset, said), once=visit.said("once"))
    except Problem as problem:
        return await _form(visit, dataset, said, problem=problem)
    return go(f"/jobs/{job['id']}")


async def _dataset(visit: Visit) -> Json:
    return await visit.api.get(f"/datasets/{visit.id('dataset_id')}")


def _said(visit: Visit) -> dict[str, str]:
    return {name: visit.said(name) for name in visit.form if name not in _OWN}


async def _form(
    visit: Visit, dataset: Json, said: dict[str, str], *, step: str = "", problem: Problem | None = None
) -> Response:
    tag = said.get("type", "")
    about = {each["tag"]: each["about"] for each in offered(dataset["trust"])}
    if tag not in about:
        raise NotFound("there is no such algorithm for this dataset")
    budget = await visit.api.get_there(f"/datasets/{dataset['id']}/budget")
    forecast = None
    if step:
        forecast, problem = await _forecast(visit, dataset, said)
    is_confirmed = step == "review" and problem is None and (forecast is not None or dataset["trust"] == "central")
    return show(
        visit,
        "confirm_job.html" if is_confirmed else "job_form.html",
        status=problem.status if problem is not None else 200,
        dataset=dataset,
        algorithm={"tag": tag, "about": about[tag]},
        fields=fields(tag),
        said=said,
        budget=budget,
        forecast=forecast,
        refusal=refused(problem),
        spends=_in_words(said, dataset, budget),
        job=_job(dataset, said) if is_confirmed else None,
    )


async def _forecast(visit: Visit, dataset: Json, said: dict[str, str]) -> tuple[Json | None, Problem | None]:
    """What the API forecasts, or refuses; neither where the form does not say enough yet."""
    expected = said.get("target_reports" if dataset["trust"] == "local" else "expected_records", "")
    if not expected or not said.get("epsilon"):
        return None, None
    body: Json = {"dataset_id": dataset["id"], "algorithm": algorithm(said["type"], said)}
    body["expected_reports" if dataset["trust"] == "local" else "expected_records"] = numeric(expected)
    try:
        return await visit.api.post("/forecasts", body), None
    except Problem as problem:
        return None, problem


def _job(dataset: Json, said: dict[str, str]) -> Json:
    """The job a form describes, as the API takes it."""
    body: Json = {"dataset_id": dataset["id"], "algorithm": algorithm(said.get("type", ""), said)}
    if dataset["trust"] == "local":
        for name in ("target_reports", "min_reports"):
            if said.get(name):
                body[name] = numeric(said[name])
        days = numeric(said.get("collect_days") or "7")
        body["collect_seconds"] = round(days * DAY_SECONDS) if isinstance(days, int | float) else days
        body["allow_insufficient"] = said.get("allow_insufficient") == "true"
    return body


def _in_words(said: dict[str, str], dataset: Json, budget: Json | None) -> Json | None:
    """What the job spends, of what is left; None while its epsilon is no number."""
    epsilon = numeric(said.get("epsilon", ""))
    if not isinstance(epsilon, int | float) or epsilon <= 0 or said.get("type") not in SCHEMAS:
        return None
    of_whom = "of each person who answers" if dataset["trust"] == "local" else "of everybody in the dataset"
    if budget is None:
        return {"text": f"This spends at most ε {amount(epsilon)} {of_whom}.", "is_over": False}
    left = budget["remaining"]
    if epsilon > left:
        text = f"This would spend ε {amount(epsilon)}, and {amount(left)} is left: it will be refused."
        return {"text": text, "is_over": True}
    text = f"This spends at most {amount(epsilon)} of the ε {amount(left)} left, {of_whom}."
    return {"text": text, "is_over": False}


PAGES: list[Page] = [
    ("GET", "/datasets/{dataset_id}/jobs/new", chooser),
    ("POST", "/datasets/{dataset_id}/jobs/forecast", forecast_fragment),
    ("POST", "/datasets/{dataset_id}/jobs", submit),
]
