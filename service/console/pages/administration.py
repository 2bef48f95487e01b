"""Pages of keys, webhooks and the audit trail."""

from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.tables.identity import Act, Scope
from models.tables.webhooks import EventType
from service.console import queries
from service.console.forms import Json, parse_seconds
from service.console.rendering import redirect, show
from service.console.request import Page, Visit
from service.http.auth import check
from service.http.problems import Forbidden, Problem
from service.schemas import serializers

ROWS = 50
EVENTS = 25
HOUR_SECONDS = 3600
AUDIT_FILTERS = ("action", "actor", "object", "dataset_id")


# ---- keys ----


async def keys_page(visit: Visit, *, created: Json | None = None, problem: Problem | None = None) -> Response:
    """Serve `GET /console/keys`, with `?dataset_id=` of a dataset only. `created` is a new key with its secret."""
    page = await visit.api.get("/keys", limit=ROWS, cursor=visit.query_value("cursor") or None)
    dataset_id = visit.query_id("dataset_id")
    dataset = await visit.api.get(f"/datasets/{dataset_id}") if dataset_id else None
    if dataset is not None:
        page = {"items": await run_in_threadpool(_keys_of, visit, dataset_id), "next_cursor": None}
    return show(
        visit,
        "keys.html",
        problem,
        dataset=dataset,
        dataset_id=dataset_id,
        keys=page["items"],
        next_cursor=page["next_cursor"],
        scopes=list(Scope),
        own_key_id=visit.caller.key_id,
        names=await run_in_threadpool(_names_of, visit, {key["dataset_id"] for key in page["items"]} - {None}),
        created=created,
        form_value=lambda name: visit.form_value(name) or (visit.query_value(name) if name == "dataset_id" else ""),
        chosen=visit.form.get("scopes", []),
    )


def _names_of(visit: Visit, ids: set[str]) -> dict[str, str]:
    with visit.services.database.reading() as session:
        return queries.find_names(session, visit.caller, ids)


def _keys_of(visit: Visit, dataset_id: str) -> list[Json]:
    with visit.services.database.reading() as session:
        return [serializers.key(row) for row in queries.keys_of(session, visit.caller, dataset_id, limit=ROWS)]


async def create_key(visit: Visit) -> Response:
    """Serve `POST /console/keys`."""
    body: Json = {"name": visit.form_value("name"), "scopes": visit.form.get("scopes", [])}
    body |= visit.filled("dataset_id")
    if visit.form_value("expires_on"):
        body["expires_at"] = f"{visit.form_value('expires_on')}T00:00:00Z"
    return await _create_key(visit, "/keys", body)


async def rotate_key(visit: Visit) -> Response:
    """Serve `POST /console/keys/{key_id}/rotate`."""
    seconds = parse_seconds(visit.form_value("overlap_hours") or "24", HOUR_SECONDS)
    return await _create_key(visit, f"/keys/{visit.id('key_id')}/rotate", {"overlap_seconds": seconds})


async def _create_key(visit: Visit, path: str, body: Json) -> Response:
    try:
        created = await visit.api.post(path, body, once=visit.form_value("once"))
    except Forbidden:
        raise
    except Problem as problem:
        return await keys_page(visit, problem=problem)
    return await keys_page(visit, created=created)


async def revoke_key(visit: Visit) -> Response:
    """Serve `POST /console/keys/{key_id}/revoke`."""
    await visit.api.delete(f"/keys/{visit.id('key_id')}")
    return redirect("/keys")


# ---- webhooks ----


async def webhooks_page(visit: Visit, *, created: Json | None = None, problem: Problem | None = None) -> Response:
    """Serve `GET /console/webhooks`; `created` is a new webhook with its secret."""
    page = await visit.api.get("/webhooks", limit=ROWS, cursor=visit.query_value("cursor") or None)
    return show(
        visit,
        "webhooks.html",
        problem,
        webhooks=page["items"],
        next_cursor=page["next_cursor"],
        event_types=list(EventType),
        created=created,
        chosen=visit.form.get("event_types", []),
    )


async def create_webhook(visit: Visit) -> Response:
    """Serve `POST /console/webhooks`."""
    body: Json = {"url": visit.form_value("url"), "event_types": visit.form.get("event_types", [])}
    body |= visit.filled("dataset_id", "description")
    try:
        created = await visit.api.post("/webhooks", body, once=visit.form_value("once"))
    except Forbidden:
        raise
    except Problem as problem:
        return await webhooks_page(visit, problem=problem)
    return await webhooks_page(visit, created=created)


async def webhook_page(visit: Visit) -> Response:
    """Serve `GET /console/webhooks/{webhook_id}`: a webhook and its deliveries."""
    path = f"/webhooks/{visit.id('webhook_id')}"
    webhook = await visit.api.get(path)
    page = await visit.api.get(f"{path}/deliveries", limit=ROWS, cursor=visit.query_value("cursor") or None)
    return show(visit, "webhook.html", webhook=webhook, deliveries=page["items"], next_cursor=page["next_cursor"])


async def test_webhook(visit: Visit) -> Response:
    """Serve `POST /console/webhooks/{webhook_id}/test`."""
    await visit.api.post(f"/webhooks/{visit.id('webhook_id')}/test", once=visit.form_value("once"))
    return redirect(f"/webhooks/{visit.id('webhook_id')}")


async def switch_webhook(visit: Visit) -> Response:
    """Serve `POST /console/webhooks/{webhook_id}/enabled`."""
    await visit.api.patch(f"/webhooks/{visit.id('webhook_id')}", {"enabled": visit.form_value("enabled") == "true"})
    return redirect(f"/webhooks/{visit.id('webhook_id')}")


async def delete_webhook(visit: Visit) -> Response:
    """Serve `POST /console/webhooks/{webhook_id}/delete`."""
    await visit.api.delete(f"/webhooks/{visit.id('webhook_id')}")
    return redirect("/webhooks")


# ---- the audit trail ----


async def audit_page(visit: Visit) -> Response:
    """Serve `GET /console/audit`: events, newest first; with a filter, the events that match it."""
    check(visit.caller, Scope.ADMIN)
    filters = visit.filters(*AUDIT_FILTERS)
    if filters:
        cursor = visit.query_value("cursor") or None
        trail = await visit.api.get("/audit", limit=EVENTS, cursor=cursor, **filters)
    else:
        trail = await visit.newest_first("/audit", await run_in_threadpool(_audit_end, visit), EVENTS)
    older = trail.get("next_cursor")
    older = urlencode(filters | {"cursor": older}) if older else None
    ids = {event[name] for event in trail["items"] for name in ("subject_id", "actor")}
    return show(
        visit,
        "audit.html",
        trail=trail,
        filters=filters,
        older=older,
        actions=[act.value for act in Act],
        names=await run_in_threadpool(_names_of, visit, ids),
    )


def _audit_end(visit: Visit) -> int:
    with visit.services.database.reading() as session:
        return queries.audit_end(session, visit.caller.tenant_id)


PAGES: list[Page] = [
    Page("GET", "/keys", keys_page, ("dataset_id", "cursor")),
    Page("POST", "/keys", create_key),
    Page("POST", "/keys/{key_id}/rotate", rotate_key),
    Page("POST", "/keys/{key_id}/revoke", revoke_key),
    Page("GET", "/webhooks", webhooks_page, ("cursor",)),
    Page("POST", "/webhooks", create_webhook),
    Page("GET", "/webhooks/{webhook_id}", webhook_page, ("cursor",)),
    Page("POST", "/webhooks/{webhook_id}/test", test_webhook),
    Page("POST", "/webhooks/{webhook_id}/enabled", switch_webhook),
    Page("POST", "/webhooks/{webhook_id}/delete", delete_webhook),
    Page("GET", "/audit", audit_page, (*AUDIT_FILTERS, "page", "cursor")),
]
