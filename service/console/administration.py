"""Keys, webhooks and the audit trail."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models import glance
from models.tenant import Scope
from models.webhook import EventType
from service.auth import check
from service.console.forms import numeric, refused
from service.console.rendering import go, show
from service.console.visits import Page, Visit
from service.dependencies import cursor_of
from service.problems import Forbidden, Problem

ROWS = 50
EVENTS = 25
HOUR_SECONDS = 3600

Json = dict[str, Any]

# ---- keys ----


async def keys_page(visit: Visit, *, made: Json | None = None, problem: Problem | None = None) -> Response:
    """`GET /console/keys`; `made` is a key whose secret is shown this once."""
    page = await visit.api.get("/keys", limit=ROWS, cursor=visit.asked("cursor") or None)
    return show(
        visit,
        "keys.html",
        status=problem.status if problem else 200,
        keys=page["items"],
        next_cursor=page["next_cursor"],
        scopes=list(Scope),
        own_key_id=visit.caller.key_id,
        made=made,
        refusal=refused(problem),
        said=lambda name: visit.said(name) or (visit.asked(name) if name == "dataset_id" else ""),
        chosen=visit.form.get("scopes", []),
    )


async def make_key(visit: Visit) -> Response:
    """`POST /console/keys`."""
    body: Json = {"name": visit.said("name"), "scopes": visit.form.get("scopes", [])}
    if visit.said("dataset_id"):
        body["dataset_id"] = visit.said("dataset_id")
    if visit.said("expires_on"):
        body["expires_at"] = f"{visit.said('expires_on')}T00:00:00Z"
    return await _made_key(visit, "/keys", body)


async def rotate_key(visit: Visit) -> Response:
    """`POST /console/keys/{key_id}/rotate`."""
    hours = numeric(visit.said("overlap_hours") or "24")
    seconds = round(hours * HOUR_SECONDS) if isinstance(hours, int | float) else hours
    return await _made_key(visit, f"/keys/{visit.id('key_id')}/rotate", {"overlap_seconds": seconds})


async def _made_key(visit: Visit, path: str, body: Json) -> Response:
    try:
        made = await visit.api.post(path, body, once=visit.said("once"))
    except Forbidden:
        raise
    except Problem as problem:
        return await keys_page(visit, problem=problem)
    return await keys_page(visit, made=made)


async def revoke_key(visit: Visit) -> Response:
    """`POST /console/keys/{key_id}/revoke`."""
    await visit.api.delete(f"/keys/{visit.id('key_id')}")
    return go("/keys")


# ---- webhooks ----


async def webhooks_page(visit: Visit, *, made: Json | None = None, problem: Problem | None = None) -> Response:
    """`GET /console/webhooks`; `made` is a webhook whose secret is shown this once."""
    page = await visit.api.get("/webhooks", limit=ROWS, cursor=visit.asked("cursor") or None)
    return show(
        visit,
        "webhooks.html",
        status=problem.status if problem else 200,
        webhooks=page["items"],
        next_cursor=page["next_cursor"],
        event_types=list(EventType),
        made=made,
        refusal=refused(problem),
        said=visit.said,
        chosen=visit.form.get("event_types", []),
    )


async def make_webhook(visit: Visit) -> Response:
    """`POST /console/webhooks`."""
    body: Json = {"url": visit.said("url"), "event_types": visit.form.get("event_types", [])}
    if visit.said("dataset_id"):
        body["dataset_id"] = visit.said("dataset_id")
    if visit.said("description"):
        body["description"] = visit.said("description")
    try:
        made = await visit.api.post("/webhooks", body, once=visit.said("once"))
    except Forbidden:
        raise
    except Problem as problem:
        return await webhooks_page(visit, problem=problem)
    return await webhooks_page(visit, made=made)


async def webhook_page(visit: Visit) -> Response:
    """`GET /console/webhooks/{webhook_id}`: one, and what it was sent."""
    path = f"/webhooks/{visit.id('webhook_id')}"
    webhook = await visit.api.get(path)
    page = await visit.api.get(f"{path}/deliveries", limit=ROWS, cursor=visit.asked("cursor") or None)
    return show(visit, "webhook.html", webhook=webhook, deliveries=page["items"], next_cursor=page["next_cursor"])


async def test_webhook(visit: Visit) -> Response:
    """`POST /console/webhooks/{webhook_id}/test`."""
    await visit.api.post(f"/webhooks/{visit.id('webhook_id')}/test", once=visit.said("once"))
    return go(f"/webhooks/{visit.id('webhook_id')}")


async def switch_webhook(visit: Visit) -> Response:
    """`POST /console/webhooks/{webhook_id}/enabled`."""
    await visit.api.patch(f"/webhooks/{visit.id('webhook_id')}", {"enabled": visit.said("enabled") == "true"})
    return go(f"/webhooks/{visit.id('webhook_id')}")


async def delete_webhook(visit: Visit) -> Response:
    """`POST /console/webhooks/{webhook_id}/delete`."""
    await visit.api.delete(f"/webhooks/{visit.id('webhook_id')}")
    return go("/webhooks")


# ---- the audit trail ----


async def audit_page(visit: Visit) -> Response:
    """`GET /console/audit`: newest first; pages are counted from the end."""
    check(visit.caller, Scope.ADMIN)
    last = await run_in_threadpool(_audit_end, visit)
    size = min(EVENTS, visit.services.settings.max_page)
    n_pages = max(1, -(-last // size))
    number = visit.page(n_pages)
    before = last - size * (number - 1)
    after = max(0, before - size)
    page = await visit.api.get("/audit", cursor=cursor_of(str(after)), limit=max(1, before - after))
    return show(visit, "audit.html", events=page["items"][::-1], page=number, n_pages=n_pages, n_events=last)


def _audit_end(visit: Visit) -> int:
    with visit.services.database.reading() as session:
        return glance.audit_end(session, visit.caller.tenant_id)


PAGES: list[Page] = [
    ("GET", "/keys", keys_page),
    ("POST", "/keys", make_key),
    ("POST", "/keys/{key_id}/rotate", rotate_key),
    ("POST", "/keys/{key_id}/revoke", revoke_key),
    ("GET", "/webhooks", webhooks_page),
    ("POST", "/webhooks", make_webhook),
    ("GET", "/webhooks/{webhook_id}", webhook_page),
    ("POST", "/webhooks/{webhook_id}/test", test_webhook),
    ("POST", "/webhooks/{webhook_id}/enabled", switch_webhook),
    ("POST", "/webhooks/{webhook_id}/delete", delete_webhook),
    ("GET", "/audit", audit_page),
]
