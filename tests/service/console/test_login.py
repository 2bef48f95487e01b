"""Tests of signing in to the console, of sessions, and of the checks of forms."""

import hashlib
import re
from typing import ClassVar

import pytest
import structlog
from sqlalchemy import select

from devservers.inprocess import InProcess
from models.database.engine import Database
from models.database.types import SECOND
from models.identity import console_sessions, keys
from models.identity.console_sessions import MAX_SESSIONS, SESSION_SECONDS
from models.tables.identity import ConsoleSession
from runtime.settings import Settings
from service.app import create_app
from service.console.rendering import HERE, POLICY
from tests.service.api import SQLITE_ONLY, Api, stranger, unknown
from tests.service.console.session import ORIGIN, Console, words


@SQLITE_ONLY
class TestSigningIn:
    def test_creates_a_session_and_shows_neither_key_nor_token(self, api: Api, database: Database) -> None:
        console = Console(api)
        page = console.get("/")
        assert page.status_code == 200
        for secret in (api.secret, console.token):
            assert secret not in page.text
            assert secret not in str(page.headers)
        with database.reading() as session:
            row = session.get_one(ConsoleSession, hashlib.sha256(console.token.encode()).digest())
            assert row.expires_at - row.created_at == SESSION_SECONDS * SECOND

    def test_cookie_is_limited_to_the_console_and_hidden_from_scripts(self, api: Api) -> None:
        response = Console(api, sign_in=False).sign_in(api.secret)
        parts = set(response.headers["set-cookie"].split("; ")[1:])
        assert {"HttpOnly", "SameSite=strict", "Path=/console", "Secure", f"Max-Age={SESSION_SECONDS}"} <= parts
        for host in ("127.0.0.1:8000", "localhost", "[::1]:8000"):  # loopback addresses need no TLS
            headers = {"host": host, "origin": f"http://{host}"}
            response = api.http.post("/console/login", data={"key": api.secret}, headers=headers)
            assert response.status_code == 303
            assert "Secure" not in response.headers["set-cookie"]

    def test_rejects_an_invalid_key_and_does_not_repeat_it(self, api: Api) -> None:
        for secret in ("", "sfk_", "sfk_" + "0" * 64, "x" * 500, "sfk_\N{SNOWMAN}", "<script>alert(1)</script>"):
            response = Console(api, sign_in=False).sign_in(secret)
            assert response.status_code == 401
            assert "set-cookie" not in response.headers
            assert len(secret) < 5 or secret not in response.text
            assert 'role="alert"' in response.text

    def test_redirects_to_the_requested_page_of_this_site_only(self, api: Api) -> None:
        console = Console(api, sign_in=False)
        response = console.get("/jobs")
        assert (response.status_code, response.headers["location"]) == (303, "/console/login?next=/console/jobs")
        foreign = ("https://evil.example/", "//evil.example", "/console//evil.example", "/v1/keys", "/console/../v1")
        for requested, location in (("/console/jobs", "/console/jobs"), *((each, "/console/") for each in foreign)):
            response = Console(api, sign_in=False).sign_in(api.secret, next=requested)
            assert response.headers["location"] == location

    def test_accepts_only_its_own_page(self, api: Api) -> None:
        for origin in ("https://evil.example", "null", "", "http://gateway.evil.example", "gateway"):
            response = api.http.post("/console/login", data={"key": api.secret}, headers={"origin": origin})
            assert response.status_code == 403
            assert "set-cookie" not in response.headers

    def test_names_the_setting_if_a_proxy_rewrites_the_host(self, api: Api) -> None:
        headers = {"origin": "https://sfumato.example", "host": "10.0.0.1:8000"}
        response = api.http.post("/console/login", data={"key": api.secret}, headers=headers)
        assert response.status_code == 403
        for word in ("sfumato.example", "10.0.0.1:8000", "SFUMATO_PUBLIC_URL"):
            assert word in response.text

    def test_ends_the_previous_session_of_the_browser(self, console: Console) -> None:
        earlier = console.token
        console.sign_in(console.secret)
        assert console.token != earlier
        console.token = earlier
        assert console.get("/").status_code == 303

    def test_limits_failed_attempts_and_requests(self, database: Database, settings: Settings) -> None:
        few = settings.model_copy(update={"rate_of_failures": 3, "rate_per_key": 3})
        with InProcess(create_app(few, database)) as gateway:
            api = stranger(gateway.client, database)
            console, guesser = Console(api), Console(api, sign_in=False)
            responses = [guesser.sign_in(f"sfk_{i}") for i in range(5)]
            assert [response.status_code for response in responses] == [401, 401, 401, 429, 429]
            assert int(responses[-1].headers["retry-after"]) > 0
            assert guesser.sign_in(api.key("admin").secret).status_code == 303  # a valid key is always accepted
            assert [console.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]

    def test_limits_the_sessions_of_a_key(self, api: Api, database: Database) -> None:
        first = Console(api)
        for _ in range(MAX_SESSIONS):
            Console(api)
        assert first.get("/").status_code == 303
        key_id = api.caller().key_id
        with database.reading() as session:
            rows = session.scalars(select(ConsoleSession).where(ConsoleSession.key_id == key_id)).all()
        assert len(rows) == MAX_SESSIONS


@SQLITE_ONLY
class TestASession:
    def test_ends_after_sign_out(self, console: Console) -> None:
        response = console.post("/logout")
        assert response.headers["location"] == "/console/login"
        assert "Max-Age=0" in response.headers["set-cookie"]
        assert console.get("/").status_code == 303

    def test_ends_immediately_with_its_key(self, api: Api, console: Console, database: Database) -> None:
        caller = api.caller()
        with database.transaction() as session:
            keys.revoke_key(session, caller.tenant_id, caller.key_id, now=database.clock())
        response = console.get("/")
        assert (response.status_code, response.headers["location"]) == (303, "/console/login")

    @pytest.mark.parametrize("seconds", [SESSION_SECONDS, 60], ids=["session", "key"])
    def test_ends_after_its_lifetime(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, seconds: int
    ) -> None:
        ends_at = database.clock() + seconds * SECOND
        console = Console(api if seconds == SESSION_SECONDS else api.key("admin", expires_at=ends_at))
        for now, status in ((ends_at - SECOND, 200), (ends_at + SECOND, 303)):
            monkeypatch.setattr(database, "clock", lambda now=now: now)
            assert console.get("/").status_code == status

    def test_needs_its_token(self, api: Api) -> None:
        for token in (b"", b"0" * 64, b"x" * 64, b"0" * 10_000, b'"; DROP TABLE', "ü".encode()):
            response = api.http.get("/console/", headers={"cookie": b"sfumato_console=" + token})
            assert response.status_code == 303

    def test_gives_no_access_to_the_api(self, api: Api, console: Console) -> None:
        assert api.http.get("/v1/datasets", headers={"cookie": console.cookie}).status_code == 401

    def test_redirects_a_script_to_the_sign_in_page(self, api: Api) -> None:
        console = Console(api, sign_in=False)
        response = console.get("/jobs", **{"hx-request": "true"})
        assert (response.status_code, response.headers["hx-redirect"]) == (401, "/console/login")
        assert console.get(f"/jobs/{unknown('job')}/events", accept="text/event-stream").status_code == 401

    def test_is_deleted_when_the_next_session_starts(self, api: Api, database: Database) -> None:
        with database.transaction() as session:
            token = console_sessions.begin(session, api.caller(), now=1)
        Console(api)
        with database.reading() as session:
            assert session.get(ConsoleSession, hashlib.sha256(token.encode()).digest()) is None


@SQLITE_ONLY
class TestAForm:
    KEY: ClassVar = {"name": "n", "scopes": "device"}

    def test_of_another_site_or_session_is_rejected(self, api: Api, console: Console) -> None:
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
            {"origin": ORIGIN, "sec-fetch-site": "same-site"},
        ):
            assert console.post("/keys", self.KEY, **headers).status_code == 403
        for csrf in ("", "0" * 64, "\N{SNOWMAN}", Console(api).csrf):
            response = console.post("/keys", self.KEY | {"csrf": csrf})
            assert response.status_code == 403
            assert "another session" in words(response)

    def test_that_is_malformed_is_rejected(self, console: Console) -> None:
        form = "application/x-www-form-urlencoded"
        for body, media_type, status in (
            (b"{}", "application/json", 400),
            (b"a=%FF", form, 400),
            (b"\xff=1", form, 400),
            (b"&".join(b"a%d=1" % i for i in range(300)), form, 400),
            (b"a=" + b"x" * 70_000, form, 413),
            (b"", form, 403),
        ):
            assert console.send("/keys", body, media_type).status_code == status, body[:9]

    def test_submitted_twice_has_effect_once(self, api: Api, console: Console) -> None:
        first, second = (console.post("/keys", self.KEY | {"once": "frm_x"}) for _ in range(2))
        assert re.search("sfk_[0-9a-f]{64}", first.text)
        assert second.status_code == 200
        assert not re.search("sfk_[0-9a-f]{64}", second.text)
        assert [key["name"] for key in api.get("/keys").json()["items"]].count("n") == 1


@SQLITE_ONLY
class TestEveryResponse:
    def test_has_strict_headers_no_inline_script_or_style_and_no_foreign_url(self, console: Console) -> None:
        assert "unsafe" not in POLICY
        for path in ("/", "/jobs", "/keys", "/webhooks", "/audit", "/nothing", f"/jobs/{unknown('job')}", "/jobs/x"):
            response = console.get(path)
            assert response.headers["content-security-policy"] == POLICY
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["referrer-policy"] == "same-origin"
            assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", response.text)
            assert not re.findall(r'(?:src|href|action)="(?!/console|#)[^"]*"', response.text)

    def test_without_the_trailing_slash_is_redirected_and_another_method_is_an_error(self, console: Console) -> None:
        for path in ("/", "/console"):
            response = console.http.get(path)
            assert (response.status_code, response.headers["location"]) == (308, "/console/")
        headers = {"cookie": console.cookie, "origin": ORIGIN}
        for method in ("PUT", "DELETE", "PATCH", "POST"):
            assert console.http.request(method, "/console/jobs", headers=headers).status_code == 405

    def test_of_a_static_file_is_cacheable_and_other_files_are_not_served(self, api: Api) -> None:
        response = api.http.get("/console/static/console.css")
        assert response.headers["content-type"].startswith("text/css")
        assert response.headers["cache-control"] == "public, max-age=3600"
        (named,) = re.findall(r'href="(/console/static/console\.css\?v=\w+)"', api.http.get("/console/login").text)
        assert api.http.get(named).headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "immutable" not in api.http.get(named + "0").headers["cache-control"]  # the URL names another version
        again = api.http.get("/console/static/console.css", headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304
        for path in ("%2e%2e/site.py", "../__init__.py", "templates/base.html", "vendor", ""):
            assert api.http.get(f"/console/static/{path}").status_code in (303, 404)

    def test_duration_is_not_logged(self, api: Api, console: Console) -> None:
        """The duration of a page can depend on private data, as in the API."""
        central = api.dataset(trust="central")
        with structlog.testing.capture_logs() as lines:
            console.get("/")
            console.get(f"/datasets/{central['id']}")
            api.get(f"/rounds/{unknown('rnd')}")  # the duration of this request is logged
        assert ["ms" in line for line in lines] == [False, False, True]
        assert api.secret not in str(lines)
        assert console.token not in str(lines)


def test_every_form_sends_get_or_post() -> None:
    """Check the methods, because browsers treat an unknown method as GET."""
    pages = "".join(path.read_text() for path in (HERE / "templates").glob("*.html"))
    methods = re.findall(r'<form[^>]*method="([^"]*)"', pages)
    assert len(methods) >= 10
    assert set(methods) == {"get", "post"}
