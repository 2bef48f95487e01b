"""Webhooks over HTTP: creation, changes, secrets, deliveries and audit events."""

from base64 import b64decode
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from standardwebhooks.webhooks import Webhook as Verifier

from models import encryption
from models.database.engine import Database
from models.encryption import Keyring, load_keyring
from models.webhooks import webhooks
from runtime.settings import Settings
from service.cli import records
from tests.service.api import SQLITE_KIND_ONLY, SQLITE_ONLY, Api, refused, unknown
from tests.service.webhooks.test_webhook_addresses import BAD

NEW = {"url": "https://hooks.example.invalid/x", "event_types": ["job.succeeded", "job.failed"]}

BODIES: list[Any] = [
    *({}, [], None, "x", {"url": NEW["url"]}, {"event_types": NEW["event_types"]}, NEW | {"url": None}),
    *(NEW | {"event_types": types} for types in ([], ["job.done"], ["webhook.ping"], "job.failed", [["job.failed"]])),
    *(
        NEW | {"url": 5},
        NEW | {"event_types": ["job.failed"] * 9},
        NEW | {"dataset_id": "ds_1"},
        NEW | {"dataset_id": 5},
    ),
    *(NEW | {"description": description} for description in ("x" * 201, "a\nb", None)),
    *(NEW | {"secret": "whsec_mine"}, NEW | {"enabled": False}, NEW | {"tenant_id": "ten_1"}),
]


class TestCreate:
    def test_returns_the_secret_once(self, api: Api, database: Database) -> None:
        given = NEW | {"dataset_id": api.dataset()["id"], "description": "of the app"}
        response, again = (api.post("/webhooks", given, headers={"Idempotency-Key": "w"}) for _ in range(2))
        created = response.json()
        assert response.headers["location"] == f"/v1/webhooks/{created['id']}"
        assert {name: created[name] for name in given} == given | {"event_types": sorted(given["event_types"])}
        assert (created["enabled"], created["disabled_reason"]) == (True, None)
        Verifier(created["secret"])
        assert again.json() == created | {"secret": None}
        shown = {name: value for name, value in created.items() if name != "secret"}
        assert api.get(f"/webhooks/{created['id']}").json() == shown
        assert api.get("/webhooks").json() == {"items": [shown], "next_cursor": None}
        with database.reading() as session:
            for table, column in (("idempotent_responses", "body"), ("webhook_secrets", "sealed")):
                for (value,) in session.execute(text(f"SELECT {column} FROM {table}")):  # noqa: S608
                    assert created["secret"].removeprefix("whsec_").encode() not in bytes(value)

    @SQLITE_ONLY
    def test_with_an_invalid_body_or_private_address_is_refused(self, api: Api, other: Api) -> None:
        for url in BAD[::9]:  # all of them are tested with the addresses
            document = refused(api.post("/webhooks", NEW | {"url": url}), 422, "validation_failed")
            assert [each["pointer"] for each in document["errors"]] == ["/url"]
        for body in BODIES:
            response = api.request("POST", "/webhooks", json=body)
            refused(response, 422, "validation_failed")
            assert "whsec_mine" not in response.text
        refused(api.post("/webhooks", NEW | {"dataset_id": other.dataset()["id"]}), 404, "not_found")
        assert api.get("/webhooks").json()["items"] == []

    @SQLITE_ONLY
    def test_above_the_limit_is_refused(self, api: Api, settings: Settings) -> None:
        for _ in range(settings.max_webhooks):
            api.made("/webhooks", NEW)
        document = refused(api.post("/webhooks", NEW), 422, "validation_failed")
        assert str(settings.max_webhooks) in document["detail"]

    @SQLITE_KIND_ONLY
    def test_needs_an_encryption_key(self, started: Callable[..., Api]) -> None:
        refused(started().post("/webhooks", NEW), 503, "unavailable")

    @SQLITE_ONLY
    def test_needs_an_unbound_key(self, api: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        refused(bound.post("/webhooks", NEW), 403, "forbidden")
        refused(bound.get(f"/webhooks/{api.made('/webhooks', NEW)['id']}"), 403, "forbidden")


@SQLITE_ONLY
class TestChange:
    def test_changes_the_given_members(self, api: Api) -> None:
        at = f"/webhooks/{api.made('/webhooks', NEW)['id']}"
        change = {"url": "https://new.example.invalid/", "event_types": ["round.closed"], "description": "new"}
        changed = api.patch(at, change).json()
        assert changed | change == changed
        assert api.patch(at, {}).json() == changed
        off = api.patch(at, {"enabled": False}).json()
        assert (off["enabled"], off["url"]) == (False, change["url"])
        refused(api.post(f"{at}/test"), 409, "conflict")

    def test_has_the_limits_of_creation(self, api: Api) -> None:
        at = f"/webhooks/{api.made('/webhooks', NEW)['id']}"
        before = api.get(at).json()
        for name, value in (
            ("url", "https://127.0.0.1/"), ("url", "http://example.com/"), ("url", ""), ("event_types", []),
            ("event_types", ["x"]), ("enabled", "yes"), ("dataset_id", "ds_" + "0" * 26), ("disabled_reason", "x"),
            ("secret", "x"), ("url", None), ("enabled", None),
        ):  # fmt: skip
            refused(api.patch(at, {name: value}), 422, "validation_failed")
        assert api.patch(at, {}).json() == before == api.get(at).json()


@SQLITE_KIND_ONLY
class TestSecret:
    def test_is_rotated_and_shown_once(self, started: Callable[..., Api], settings: Settings) -> None:
        api = started(records_key=settings.records_key)
        webhook = api.made("/webhooks", NEW)
        at = f"/webhooks/{webhook['id']}/rotate"
        first, again = (api.made(at, {"overlap_seconds": 60}, headers={"Idempotency-Key": "r"}) for _ in range(2))
        assert first["secret"].startswith("whsec_")
        assert first["secret"] != webhook["secret"]
        assert again["secret"] is None
        for wrong in ({"overlap_seconds": -1}, {"overlap_seconds": 604_801}, {"overlap_seconds": 1.5}, {"secret": "x"}):
            refused(api.post(at, wrong), 422, "validation_failed")

    def test_is_encrypted_again_with_the_keys_of_records(self, started: Callable[..., Api], settings: Settings) -> None:
        api = started(records_key=settings.records_key)
        webhook = api.made("/webhooks", NEW)
        newest = encryption.new_secret()
        both = Keyring((newest, *load_keyring(settings).keys))
        progress: list[int] = []
        assert records.rotate(api.database, both, progress.append) == (1, [])
        assert records.rotate(api.database, Keyring((encryption.new_secret(),)), progress.append)[0] == 0
        with api.database.reading() as session:
            secrets = webhooks.live_secrets(session, webhook["id"], Keyring((newest,)), now=api.database.clock())
        assert secrets == [b64decode(webhook["secret"].removeprefix("whsec_"))]
        assert progress[0] == 1


class TestDeliveries:
    def test_of_a_test_event_are_listed_repeated_and_deleted(self, api: Api) -> None:
        webhook = api.made("/webhooks", NEW | {"url": "https://127.0.0.1.example.invalid/"})
        at = f"/webhooks/{webhook['id']}"
        response, again = (api.post(f"{at}/test", headers={"Idempotency-Key": "t"}) for _ in range(2))
        assert response.status_code == 202
        queued = response.json()
        assert response.headers["location"] == f"/v1{at}/deliveries/{queued['id']}"
        assert (queued["event_type"], queued["state"], queued["dataset_id"]) == ("webhook.ping", "pending", None)
        assert again.json()["id"] == queued["id"]
        for _ in range(2):
            api.made(f"{at}/test", None)
        assert len({each["id"] for each in api.list_all(f"{at}/deliveries", limit=2)}) == 3
        assert api.get(f"{at}/deliveries", params={"state": "delivered"}).json()["items"] == []
        refused(api.get(f"{at}/deliveries", params={"state": "done"}), 422, "validation_failed")
        again = api.post(f"{at}/deliveries/{queued['id']}/redeliver")
        assert (again.status_code, again.json()["id"]) == (202, queued["id"])
        refused(api.post(f"{at}/deliveries/{unknown('msg')}/redeliver"), 404, "not_found")
        refused(api.get(f"{at}/deliveries/msg_x"), 404, "not_found")
        assert api.delete(at).status_code == 204
        refused(api.delete(at), 404, "not_found")
        refused(api.get(f"{at}/deliveries/{queued['id']}"), 404, "not_found")
        assert api.get("/webhooks").json()["items"] == []


@SQLITE_ONLY
def test_the_audit_trail_names_actor_and_act_but_no_address(api: Api) -> None:
    at = f"/webhooks/{api.made('/webhooks', NEW)['id']}"
    api.patch(at, {"url": "https://hidden-4711.example.invalid/"})
    api.patch(at, {})
    api.made(f"{at}/rotate", {})
    api.delete(at)
    events = [event for event in api.list_all("/audit", limit=20) if event["subject_id"] == at.rpartition("/")[2]]
    assert [(event["act"], event["details"]) for event in events] == [
        ("webhook.created", {}),
        ("webhook.updated", {"changed": ["url"]}),
        ("webhook.updated", {"changed": ["secret"]}),
        ("webhook.deleted", {}),
    ]
    assert "hidden" not in str(events)  # no id and no hash contains an i
