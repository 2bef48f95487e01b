"""Page that requests the profile of a result: its attributes, the forecast of its errors, and its cost."""

from starlette.responses import Response

from service.console.forms import Json, collect_errors, parse_number
from service.console.rendering import amount, redirect, show
from service.console.request import Page, Visit
from service.http.problems import Problem

MOST_BOXES = 100  # attributes and features that the form offers
SHOWN_VALUES = 5  # values of a card
_COLLECTED = ("target_reports", "min_batch", "honest_share", "shuffled_delta")  # members about a round of reports
_EXPECTED = {True: ("expected_records", 20_000), False: ("expected_reports", 100_000)}  # defaults of a forecast


async def form(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/profile`: the form."""
    return await _form(visit)


async def submit(visit: Visit) -> Response:
    """Serve `POST /console/jobs/{job_id}/profile`: show the forecast and the cost, or submit, by the button."""
    job = await visit.api.get(f"/jobs/{visit.id('job_id')}")
    algorithm = _algorithm(visit, job)
    try:
        if visit.form_value("step") == "submit":
            body = {"dataset_id": job["dataset_id"], "algorithm": algorithm} | visit.numbers(*_COLLECTED)
            if visit.form_value("allow_insufficient"):
                body["allow_insufficient"] = True
            made = await visit.api.post("/jobs", body, once=visit.form_value("once"))
            return redirect(f"/jobs/{made['id']}")
        body = {"algorithm": algorithm} | visit.numbers("expected_records")
        if reports := visit.form_value("target_reports"):
            body["expected_reports"] = parse_number(reports)
        elif "expected_records" not in body:
            dataset = await visit.api.get(f"/datasets/{job['dataset_id']}")
            name, default = _EXPECTED[dataset["trust"] == "central"]
            body[name] = default
        forecast = await visit.api.post("/forecasts/profiles", body)
    except Problem as problem:
        return await _form(visit, problem=problem)
    return await _form(visit, forecast=forecast)


def _algorithm(visit: Visit, job: Json) -> Json:
    """Return the profile that the form describes."""
    body: Json = {
        "type": "profile",
        "of": job["id"],
        "attributes": [name for name in visit.form.get("attribute", ()) if name],
    }
    return body | visit.numbers("epsilon", "delta")


async def _form(visit: Visit, *, problem: Problem | None = None, forecast: Json | None = None) -> Response:
    job = await visit.api.get(f"/jobs/{visit.id('job_id')}")
    dataset = await visit.api.get(f"/datasets/{job['dataset_id']}")
    budget = await visit.api.get_existing(f"/datasets/{dataset['id']}/budget")
    features = dataset["features"] if isinstance(dataset["features"], list) else []
    names = [each["name"] for each in (*dataset["attributes"], *features)][:MOST_BOXES]
    own = {each["name"] for each in dataset["attributes"]}
    ticked = visit.form.get("attribute") or sorted(own)
    epsilon = parse_number(visit.form_value("epsilon"))
    cost = ""
    if forecast is not None and isinstance(epsilon, int | float):
        left = "" if budget is None else f" of the remaining ε {amount(budget['remaining'])}"
        who = "each person in the dataset" if dataset["trust"] == "central" else "each device that reports"
        cost = f"This profile spends at most ε {amount(epsilon)}{left} for {who}."
    return show(
        visit,
        "profile_form.html",
        problem,
        job=job,
        dataset=dataset,
        names=names,
        ticked=ticked,
        values={name: visit.form_value(name) for name in ("epsilon", "delta", "expected_records", *_COLLECTED)},
        budget=budget,
        refusal=collect_errors(problem),
        forecast=forecast,
        cost=cost,
    )


def cards(profile: Json, colours: list[str]) -> list[Json]:
    """Return the card of each cluster: its size, and the first values that distinguish it."""
    found = []
    for c, (size, error) in enumerate(zip(profile["sizes"], profile["size_errors"], strict=True)):
        listed = [each for each in profile["distinguishing"] if each["cluster"] == c]
        found.append(
            {
                "index": c,
                "name": profile["names"][c] if profile["names"] else "",
                "colour": colours[c],
                "size": size,
                "error": error,
                "is_small": c in profile["too_small"],
                "values": listed[:SHOWN_VALUES],
                "n_more": max(0, len(listed) - SHOWN_VALUES),
            }
        )
    return found


PAGES: list[Page] = [
    Page("GET", "/jobs/{job_id}/profile", form),
    Page("POST", "/jobs/{job_id}/profile", submit),
]
