"""Pages out of templates, what every page is sent with, and the files beside them."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from models.db import new_id
from service.console import PATH
from service.problems import NotFound

if TYPE_CHECKING:
    from service.console.visits import Visit

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# `same-origin`, not `no-referrer`: with that a browser would not say which page sent a form.
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}
STATIC_SECONDS = 3600
NAMED_SECONDS = 365 * 86_400  # of an address that names the content


def number(value: float | None) -> str:
    """A number as people read it: 12,345 or 0.5; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def amount(value: float) -> str:
    """An epsilon: every decimal it has, up to the ledger's nine."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if value else "0"


def small(value: float) -> str:
    """A delta."""
    return f"{value:.3g}" if value else "0"


def percent(value: float | None) -> str:
    """A share in hundredths."""
    return "–" if value is None else f"{100 * value:.1f} %"


def moment(value: str | None) -> str:
    """A time of the wire, to the second."""
    return "–" if value is None else f"{value[:10]} {value[11:19]} UTC"


def pretty(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates: everything is escaped, and a name that is not there is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": number, "amount": amount, "small": small, "percent": percent, "moment": moment, "pretty": pretty,
    }  # fmt: skip
    made.globals["static"] = static_url
    return made


def page(template: str, *, status: int = 200, headers: dict[str, str] | None = None, **shown: Any) -> Response:
    """A page, or a part of one."""
    text = environment().get_template(template).render(shown)
    return Response(text, status, {**HEADERS, **(headers or {})}, media_type="text/html; charset=utf-8")


def show(visit: "Visit", template: str, *, status: int = 200, **shown: Any) -> Response:
    """A page of somebody who signed in."""
    return page(
        template,
        status=status,
        visit=visit,
        who=visit.signed_in,
        csrf=visit.signed_in.csrf,
        once=new_id("frm"),
        **shown,
    )


def go(path: str) -> Response:
    """To another page, after a form was taken."""
    return Response(status_code=303, headers=HEADERS | {"location": PATH + path})


def as_json(document: Any) -> Response:
    """What a script asked for."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text, headers=HEADERS, media_type="application/json")


def download(content: bytes, media_type: str, name: str) -> Response:
    """A file to keep."""
    headers = HEADERS | {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, headers=headers, media_type=media_type)


# ---- files ----


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Every file there is by its name: content, media type, and a tag that changes with it."""
    root = HERE / "static"
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:16]
            found[path.relative_to(root).as_posix()] = (content, MEDIA_TYPES[path.suffix], tag)
    return found


def static_url(name: str) -> str:
    """Where a file is; another address when it is another."""
    return f"/console/static/{name}?v={_files()[name][2]}"


async def static_file(request: Request) -> Response:
    """One of the files; nothing else on the disk can be named."""
    found = _files().get(request.path_params["name"])
    if found is None:
        raise NotFound("there is no such file")
    content, media_type, tag = found
    is_named = request.query_params.get("v") == tag
    kept = f"max-age={NAMED_SECONDS}, immutable" if is_named else f"max-age={STATIC_SECONDS}"
    headers = {"cache-control": f"public, {kept}", "etag": f'"{tag}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=HEADERS | headers, media_type=media_type)
