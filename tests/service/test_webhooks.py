"""The API of webhooks: what it takes, what it shows, and that the secret is shown once."""

from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from standardwebhooks.webhooks import Webhook as Verifier

from models import sealing
from models import webhook as webhooks
from models.db import Database
from models.sealing import Keyring, keyring_of
from models.settings import Settings
from service import record_commands
from tests.service.api import Api, refused, unknown
from tests.service.test_webhook_addresses import BAD

NEW = {"url": "https://hooks.example.invalid/x", "event_types": ["job.succeeded", "job.failed"]}

BODIES: list[Any] = [
    {},
    [],
    None,
    "x",
    {"url": NEW["url"]},
    {"event_types": NEW["event_types"]},
    NEW | {"url": None},
    NEW | {"url": 5},
    NEW | {"event_types": []},
    NEW | {"event_types": ["job.done"]},
    NEW | {"event_types": ["webhook.ping"]},
    NEW | {"event_types": "job.failed"},
    NEW | {"event_types": ["job.failed"] * 8},
    NEW | {"event_types": [["job.failed"]]},
    NEW | {"dataset_id": "ds_1"},
    NEW | {"dataset_id": 5},
    NEW | {"description": "x" * 201},
    NEW | {"description": "a\nb"},
    NEW | {"description": None},
    NEW | {"secret": "whsec_mine"},
    NEW | {"enabled": False},
    NEW | {"tenant_id": "ten_1"},
]


class TestCreating:
    def test_answers_the_secret_once(self, api: Api, database: Database, settings: Settings) -> None:
        dataset = api.dataset()
        given = NEW | {"dataset_id": dataset["id"], "description": "of the app"}
        answer = api.post("/webhooks", given, headers={"Idempotency-Key": "w"})
        made = answer.json()
        assert answer.headers["location"] == f"/v1/webhooks/{made['id']}"
        assert {name: made[name] for name in given} == given | {"event_types": sorted(given["event_types"])}
        assert (made["enabled"], made["disabled_reason"]) == (True, None)
        Verifier(made["secret"])
        again = api.post("/webhooks", given, headers={"Idempotency-Key": "w"})
        assert again.json() == made | {"secret": None}
        shown = {name: value for name, value in made.items() if name != "secret"}
        assert api.get(f"/webhooks/{made['id']}").json() == shown
        assert api.get("/webhooks").json() == {"items": [shown], "next_cursor": None}
        with database.reading() as session:
            for table, column in (("idempotent_answers", "body"), ("webhook_secrets", "sealed")):
                for (value,) in session.execute(text(f"SELECT {column} FROM {table}")):  # noqa: S608
                    assert made["secret"].removeprefix("whsec_").encode() not in bytes(value)

    @pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
    def test_with_an_address_that_is_not_public_is_refused(self, api: Api, url: str) -> None:
        document = refused(api.post("/webhooks", NEW | {"url": url}), 422, "validation_failed")
        assert [each["pointer"] for each in document["errors"]] == ["/url"]

    @pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
    def test_with_a_body_that_does_not_fit_is_refused(self, api: Api, body: Any) -> None:
        answer = api.request("POST", "/webhooks", json=body)
        refused(answer, 422, "validation_failed")
        assert "whsec_mine" not in answer.text
        assert api.get("/webhooks").json()["items"] == []

    def test_for_another_tenants_dataset_finds_none(self, api: Api, other: Api) -> None:
        answer = api.post("/webhooks", NEW | {"dataset_id": other.dataset()["id"]})
        refused(answer, 404, "not_found")

    def test_beyond_the_limit_is_refused(self, api: Api, settings: Settings) -> None:
        for _ in range(settings.max_webhooks):
            api.made("/webhooks", NEW)
        document = refused(api.post("/webhooks", NEW), 422, "validation_failed")
        assert str(settings.max_webhooks) in document["detail"]

    def test_needs_a_key_that_seals(self, started: Callable[..., Api]) -> None:
        api = started()
        refused(api.post("/webhooks", NEW), 503, "unavailable")

    def test_needs_a_key_of_the_whole_tenant(self, api: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        made = api.made("/webhooks", NEW)
        refused(bound.post("/webhooks", NEW), 403, "forbidden")
        refused(bound.get(f"/webhooks/{made['id']}"), 403, "forbidden")


class TestChanging:
    def test_changes_what_is_given(self, api: Api) -> None:
        made = api.made("/webhooks", NEW)
        at = f"/webhooks/{made['id']}"
        change = {"url": "https://new.example.invalid/", "event_types": ["round.closed"], "description": "new"}
        changed = api.request("PATCH", at, json=change).json()
        assert {name: changed[name] for name in change} == change
        assert api.request("PATCH", at, json={}).json() == changed
        off = api.request("PATCH", at, json={"enabled": False}).json()
        assert (off["enabled"], off["url"]) == (False, change["url"])
        refused(api.post(f"{at}/test"), 409, "conflict")

    @pytest.mark.parametrize(
        "change",
        [
            {"url": "https://127.0.0.1/"},
            {"url": "http://example.com/"},
            {"url": ""},
            {"event_types": []},
            {"event_types": ["x"]},
            {"enabled": "yes"},
            {"dataset_id": "ds_" + "0" * 26},
            {"disabled_reason": "x"},
            {"secret": "x"},
            {"url": None},
        ],
        ids=range(10),
    )
    def test_takes_no_more_than_creating_does(self, api: Api, change: dict[str, Any]) -> None:
        made = api.made("/webhooks", NEW)
        at = f"/webhooks/{made['id']}"
        before = api.get(at).json()
        answer = api.request("PATCH", at, json=change)
        assert answer.status_code == 422 or (change == {"url": None} and answer.json() == before)
        assert api.get(at).json() == before


class TestTheSecret:
    def test_is_replaced_and_shown_once(self, api: Api) -> None:
        made = api.made("/webhooks", NEW)
        at = f"/webhooks/{made['id']}/rotate"
        first = api.made(at, {"overlap_seconds": 60}, headers={"Idempotency-Key": "r"})
        assert first["secret"] not in (None, made["secret"])
        assert api.made(at, {"overlap_seconds": 60}, headers={"Idempotency-Key": "r"})["secret"] is None
        for wrong in ({"overlap_seconds": -1}, {"overlap_seconds": 604_801}, {"overlap_seconds": 1.5}, {"secret": "x"}):
            refused(api.post(at, wrong), 422, "validation_failed")

    def test_is_needed_sealed_by_a_key_that_is_here(self, started: Callable[..., Api], settings: Settings) -> None:
        api = started(records_key=settings.records_key)
        made = api.made("/webhooks", NEW)
        assert keyring_of(settings).newest_id
        assert api.made(f"/webhooks/{made['id']}/rotate", {})["secret"].startswith("whsec_")

    def test_is_sealed_anew_with_the_keys_of_records(self, started: Callable[..., Api], settings: Settings) -> None:
        api = started(records_key=settings.records_key)
        made = api.made("/webhooks", NEW)
        newest = sealing.new_secret()
        both = Keyring((newest, *keyring_of(settings).keys))
        told: list[int] = []
        assert record_commands.rotate(api.database, both, told.append) == (1, [])
        assert record_commands.rotate(api.database, Keyring((sealing.new_secret(),)), told.append)[0] == 0
        with api.database.reading() as session:
            found = webhooks.live_secrets(session, made["id"], Keyring((newest,)), now=api.database.clock())
        assert found == [b64decode(made["secret"].removeprefix("whsec_"))]
        assert told[0] == 1


class TestDeliveries:
    def test_of_a_test_are_listed_and_repeated(self, api: Api) -> None:
        made = api.made("/webhooks", NEW | {"url": "https://127.0.0.1.example.invalid/"})
        at = f"/webhooks/{made['id']}"
        answer = api.post(f"{at}/test", headers={"Idempotency-Key": "t"})
        assert answer.status_code == 202
        queued = answer.json()
        assert answer.headers["location"] == f"/v1{at}/deliveries/{queued['id']}"
        assert (queued["event_type"], queued["state"], queued["dataset_id"]) == ("webhook.ping", "pending", None)
        assert api.post(f"{at}/test", headers={"Idempotency-Key": "t"}).json()["id"] == queued["id"]
        for _ in range(2):
            api.made(f"{at}/test", None)
        first = api.get(f"{at}/deliveries", params={"limit": 2}).json()
        rest = api.get(f"{at}/deliveries", params={"limit": 2, "cursor": first["next_cursor"]}).json()
        assert len({each["id"] for each in first["items"] + rest["items"]}) == 3
        assert api.get(f"{at}/deliveries", params={"state": "delivered"}).json()["items"] == []
        refused(api.get(f"{at}/deliveries", params={"state": "done"}), 422, "validation_failed")
        again = api.post(f"{at}/deliveries/{queued['id']}/redeliver")
        assert (again.status_code, again.json()["id"]) == (202, queued["id"])
        refused(api.post(f"{at}/deliveries/{unknown('msg')}/redeliver"), 404, "not_found")
        refused(api.get(f"{at}/deliveries/msg_x"), 404, "not_found")

    def test_go_with_their_webhook(self, api: Api) -> None:
        made = api.made("/webhooks", NEW)
        at = f"/webhooks/{made['id']}"
        queued = api.made(f"{at}/test", None)
        assert api.request("DELETE", at).status_code == 204
        refused(api.request("DELETE", at), 404, "not_found")
        refused(api.get(f"{at}/deliveries/{queued['id']}"), 404, "not_found")
        assert api.get("/webhooks").json()["items"] == []


class TestTheTrail:
    def test_names_who_did_what_and_no_address(self, api: Api) -> None:
        made = api.made("/webhooks", NEW)
        at = f"/webhooks/{made['id']}"
        api.request("PATCH", at, json={"url": "https://hidden-4711.example.invalid/"})
        api.request("PATCH", at, json={})
        api.made(f"{at}/rotate", {})
        api.request("DELETE", at)
        with api.database.reading() as session:
            rows = session.execute(
                text("SELECT act, details FROM audit_events WHERE subject_id = :id ORDER BY seq"), {"id": made["id"]}
            ).all()
        assert [(act, str(details)) for act, details in rows] == [
            ("webhook.created", "{}"),
            ("webhook.updated", '{"changed":["url"]}'),
            ("webhook.updated", '{"changed":["secret"]}'),
            ("webhook.deleted", "{}"),
        ]
