"""Pages rendered from templates, their headers, and static files."""

import hashlib
import json
import math
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from models.database.types import new_id
from service.console import PATH
from service.console.forms import collect_errors
from service.http.headers import etag_matches, header_text
from service.http.mount import mounted
from service.http.problems import NotFound, Problem
from sfumato.specs import features_from_wire, to_wire

if TYPE_CHECKING:
    from service.console.request import Visit

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# With `no-referrer` the browser would not send the origin of a form.
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}
STATIC_SECONDS = 3600
UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
NAMED_SECONDS = 365 * 86_400  # cache time of a URL that contains the hash of the file


@lru_cache(maxsize=1)
def read_glossary() -> dict[str, str]:
    """Return the meanings of the terms. Text between backticks is code."""
    meanings: dict[str, str] = json.loads((HERE / "glossary.json").read_text(encoding="utf-8"))
    return meanings


def number(value: float | None) -> str:
    """Format a number, such as 12,345 or 0.5. Return a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def digits(value: object) -> str:
    """Format a form value: a whole number with separators, anything else as it is."""
    text = str(value)
    return f"{int(text):,}" if text.isascii() and text.isdigit() and len(text) < 20 else text


def amount(value: float) -> str:
    """Format an epsilon with up to nine decimals."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if value else "0"


def small(value: float) -> str:
    """Format a delta."""
    return f"{value:.3g}" if value else "0"


def percent(value: float | None) -> str:
    """Format a share as a percentage."""
    return "–" if value is None else f"{100 * value:.1f} %"


def measured(value: float, error: float | None) -> str:
    """Format a value with its error, rounded to the error. Without an error, format the value alone."""
    if error is None or not error > 0:
        return number(value)
    return f"{rounded(value, error)} ± {rounded(error, error)}"


def rounded(value: float, error: float) -> str:
    """Format a value, rounded to the first digit of an error that is positive."""
    power = math.floor(math.log10(error))
    first_digit = error / 10**power
    decimals = max(0, (1 if first_digit < 2.95 else 0) - power)  # a first digit of 1 or 2 needs a second one
    return f"{value:,.{decimals}f}"


def share(value: float, error: float | None) -> str:
    """Format a share of people as a percentage with its error, rounded to the error."""
    if error is None or not error > 0:
        return percent(value)
    return measured(100 * value, 100 * error).replace(" ±", " % ±") + " %"


def moment(value: str | None) -> str:
    """Format a time of the API to the second."""
    return "–" if value is None else f"{value[:10]} {value[11:19]} UTC"


def duration(seconds: float | None) -> str:
    """Format a duration with two digits, such as 0.35 s or 12 min."""
    if seconds is None:
        return "–"
    size, unit = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def job_seconds(job: dict[str, Any]) -> float | None:
    """Return the seconds between the start and the end of a job, or None."""
    if job["started_at"] is None or job["finished_at"] is None:
        return None
    started, finished = (datetime.fromisoformat(job[name]) for name in ("started_at", "finished_at"))
    return (finished - started).total_seconds()


def job_name(job: dict[str, Any]) -> str:
    """Return the name of a job: its algorithm and cost."""
    words = job["algorithm"]["type"].replace("_", " ").capitalize()
    return f"{words}, ε {amount(job['used']['epsilon'] if job['round_ids'] else job['epsilon'])}"


def listed(features: Any) -> list[dict[str, Any]]:
    """Return the features of a dataset of the API as a list, also those of an embedding."""
    return features if isinstance(features, list) else [to_wire(each) for each in features_from_wire(features)]


def pretty(value: Any) -> str:
    """Format a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the template environment, which escapes all values and raises for undefined names."""
    from sfumato.profiles.cluster_profile import show_times  # slow to import, so not before the first page

    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters |= {
        "number": number, "amount": amount, "small": small, "percent": percent, "moment": moment, "pretty": pretty,
        "digits": digits, "listed": listed, "duration": duration, "job_name": job_name,
        "job_seconds": job_seconds, "measured": measured, "rounded": rounded, "share": share,
        "times": show_times,
    }  # fmt: skip
    templates.globals |= {"static": static_url, "root": lambda: mounted("")}
    return templates


def page(template: str, *, status: int = 200, headers: dict[str, str] | None = None, **shown: Any) -> Response:
    """Render a page or a part of a page."""
    text = environment().get_template(template).render(shown)
    return Response(text, status, {**HEADERS, **(headers or {})}, media_type="text/html; charset=utf-8")


def show(visit: "Visit", template: str, problem: Problem | None = None, **shown: Any) -> Response:
    """Render a page of a session. A problem gives the status, and messages next to the fields of the form."""
    common: dict[str, Any] = {
        "visit": visit,
        "session": visit.signed_in,
        "csrf": visit.signed_in.csrf,
        "once": new_id("frm"),
        "refusal": collect_errors(problem),
        "form_value": visit.form_value,
        "current_path": visit.request.url.path,
        "search_text": visit.query_value("q"),
    }
    return page(template, status=problem.status if problem else 200, **common | shown)


def redirect(path: str) -> Response:
    """Redirect to another page after a form was processed."""
    return Response(status_code=303, headers=HEADERS | {"location": PATH + path})


def as_json(document: Any) -> Response:
    """Return a JSON response for a script."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text, headers=HEADERS, media_type="application/json")


def download(content: bytes, media_type: str, name: str) -> Response:
    """Return a file download."""
    headers = HEADERS | {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, headers=headers, media_type=media_type)


# ---- files ----


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, media type and content hash of all static files, by name."""
    root = HERE / "static"
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:16]
            found[path.relative_to(root).as_posix()] = (content, MEDIA_TYPES[path.suffix], tag)
    return found


def static_url(name: str) -> str:
    """Return the URL of a static file. The URL changes with the content."""
    return mounted(f"/console/static/{name}?v={_files()[name][2]}")


async def static_file(request: Request) -> Response:
    """Return a static file. Only files of the static folder have names."""
    found = _files().get(request.path_params["name"])
    if found is None:
        raise NotFound("the file does not exist")
    content, media_type, tag = found
    is_named = request.query_params.get("v") == tag
    kept = f"max-age={NAMED_SECONDS}, immutable" if is_named else f"max-age={STATIC_SECONDS}"
    headers = {"cache-control": f"public, {kept}", "etag": f'"{tag}"'}
    if etag_matches(headers["etag"], header_text(request.scope, b"if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=HEADERS | headers, media_type=media_type)
