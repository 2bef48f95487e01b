"""The console's door: who signs in, what a session is worth, and which forms are taken."""

import hashlib
import re

import httpx
import pytest
import structlog
from sqlalchemy import select

from models import console_session, tenant
from models.console_session import MAX_SESSIONS, SESSION_SECONDS, ConsoleSession
from models.db import SECOND, Database
from models.settings import Settings
from models.tenant import Scope
from service.app import create_app
from service.console.rendering import POLICY
from tests.service.api import Api, stranger, unknown
from tests.service.console import ORIGIN, Console, words
from tests.service.inprocess import InProcess

PAGES = ["/", "/jobs", "/keys", "/webhooks", "/audit"]


@pytest.fixture
def console(api: Api) -> Console:
    """An admin's session."""
    return Console(api)


class TestSigningIn:
    def test_gives_a_session_for_a_key_and_shows_neither_again(self, api: Api, database: Database) -> None:
        console = Console(api)
        page = console.get("/")
        assert page.status_code == 200
        for secret in (api.secret, console.token):
            assert secret not in page.text
            assert secret not in str(page.headers)
        with database.reading() as session:
            row = session.get(ConsoleSession, hashlib.sha256(console.token.encode()).digest())
            assert row is not None
            assert row.expires_at - row.created_at == SESSION_SECONDS * SECOND

    def test_keeps_the_cookie_from_scripts_other_sites_and_other_paths(self, api: Api) -> None:
        answer = Console(api, sign_in=False).sign_in(api.secret)
        parts = set(answer.headers["set-cookie"].split("; ")[1:])
        assert {"HttpOnly", "SameSite=strict", "Path=/console", "Secure", f"Max-Age={SESSION_SECONDS}"} <= parts

    @pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000"])
    def test_does_without_tls_on_this_machine_alone(self, api: Api, host: str) -> None:
        sent = {"key": api.secret}
        answer = api.http.post("/console/login", data=sent, headers={"host": host, "origin": f"http://{host}"})
        assert answer.status_code == 303
        assert "Secure" not in answer.headers["set-cookie"]

    @pytest.mark.parametrize(
        "secret", ["", "sfk_", "sfk_" + "0" * 64, "x" * 500, "sfk_\N{SNOWMAN}", "<script>alert(1)</script>"]
    )
    def test_refuses_what_is_no_live_key_and_does_not_repeat_it(self, api: Api, secret: str) -> None:
        answer = Console(api, sign_in=False).sign_in(secret)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert len(secret) < 5 or secret not in answer.text
        assert 'role="alert"' in answer.text

    def test_goes_where_the_visitor_wanted_to(self, api: Api) -> None:
        asked = Console(api, sign_in=False).get("/jobs")
        assert (asked.status_code, asked.headers["location"]) == (303, "/console/login?next=/console/jobs")
        answer = Console(api, sign_in=False).sign_in(api.secret, next="/console/jobs")
        assert answer.headers["location"] == "/console/jobs"

    @pytest.mark.parametrize(
        "elsewhere",
        ["https://evil.example/", "//evil.example", "/console//evil.example", "/v1/keys", "/console/../v1"],
    )
    def test_leads_nowhere_else(self, api: Api, elsewhere: str) -> None:
        answer = Console(api, sign_in=False).sign_in(api.secret, next=elsewhere)
        assert answer.headers["location"] == "/console/"

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://gateway.evil.example", "gateway"])
    def test_is_taken_from_its_own_page_alone(self, api: Api, origin: str) -> None:
        answer = api.http.post("/console/login", data={"key": api.secret}, headers={"origin": origin})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers

    def test_ends_the_session_the_browser_had_before(self, console: Console) -> None:
        earlier = console.token
        console.sign_in(console.secret)
        assert console.token != earlier
        console.token = earlier
        assert console.get("/").status_code == 303

    def test_is_limited_for_an_address_that_guesses(self, database: Database, settings: Settings) -> None:
        few = settings.model_copy(update={"rate_of_failures": 3})
        with InProcess(create_app(few, database)) as gateway:
            api = stranger(gateway.client, database)
            guesser = Console(api, sign_in=False)
            answers = [guesser.sign_in(f"sfk_{i}") for i in range(5)]
            assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
            assert int(answers[-1].headers["retry-after"]) > 0
            assert guesser.sign_in(api.secret).status_code == 429  # until then nobody can tell a hit from a miss

    def test_begins_a_bounded_number_of_sessions(self, api: Api, database: Database) -> None:
        first = Console(api)
        for _ in range(MAX_SESSIONS):
            Console(api)
        assert first.get("/").status_code == 303
        with database.reading() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=database.clock())
            assert caller is not None
            held = session.scalars(select(ConsoleSession).where(ConsoleSession.key_id == caller.key_id)).all()
            assert len(held) == MAX_SESSIONS


class TestASession:
    def test_ends_by_signing_out(self, console: Console) -> None:
        answer = console.post("/logout")
        assert answer.headers["location"] == "/console/login"
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert console.get("/").status_code == 303

    def test_ends_with_its_key_at_once(self, api: Api, console: Console, database: Database) -> None:
        with database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=database.clock())
            assert caller is not None
            tenant.revoke_key(session, caller.tenant_id, caller.key_id, now=database.clock())
        answer = console.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")

    @pytest.mark.parametrize("of", ["session", "key"])
    def test_ends_when_its_time_is_over(
        self, http: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch, of: str
    ) -> None:
        api = stranger(http, database)
        ends_at = database.clock() + (SESSION_SECONDS if of == "session" else 60) * SECOND
        if of == "key":
            with database.transaction() as session:
                caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=0)
                assert caller is not None
                _, secret = tenant.create_key(
                    session, caller.tenant_id, name="k", scopes=[Scope.ADMIN], expires_at=ends_at, now=0
                )
            api = Api(http, database, secret)
        console = Console(api)
        monkeypatch.setattr(database, "clock", lambda: ends_at - SECOND)
        assert console.get("/").status_code == 200
        monkeypatch.setattr(database, "clock", lambda: ends_at + SECOND)
        assert console.get("/").status_code == 303

    @pytest.mark.parametrize("token", ["", "0" * 64, "x" * 64, "0" * 10_000, '"; DROP TABLE', "ü"])
    def test_is_none_without_its_token(self, api: Api, token: str) -> None:
        console = Console(api, sign_in=False)
        console.token = token.encode("utf-8").decode("latin-1") if not token.isascii() else token
        answer = api.http.get("/console/", headers={"cookie": console.cookie.encode("latin-1")})
        assert answer.status_code == 303

    def test_opens_nothing_of_the_api(self, api: Api, console: Console) -> None:
        answer = api.http.get("/v1/datasets", headers={"cookie": console.cookie})
        assert answer.status_code == 401

    def test_sends_a_script_to_the_sign_in_page(self, api: Api) -> None:
        console = Console(api, sign_in=False)
        answer = console.get("/jobs", **{"hx-request": "true"})
        assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/console/login")
        assert console.get(f"/jobs/{unknown('job')}/events", accept="text/event-stream").status_code == 401

    def test_counts_for_its_key(self, database: Database, settings: Settings) -> None:
        few = settings.model_copy(update={"rate_per_key": 3})
        with InProcess(create_app(few, database)) as gateway:
            console = Console(stranger(gateway.client, database))
            answers = [console.get("/jobs").status_code for _ in range(4)]
            assert answers == [200, 200, 200, 429]

    def test_that_is_over_is_removed_as_the_next_begins(self, api: Api, database: Database) -> None:
        with database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=database.clock())
            assert caller is not None
            token = console_session.begin(session, caller, now=1)
        Console(api)
        with database.reading() as session:
            assert session.get(ConsoleSession, hashlib.sha256(token.encode()).digest()) is None


class TestAForm:
    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
            {"origin": ORIGIN, "sec-fetch-site": "same-site"},
        ],
    )
    def test_of_another_site_is_refused(self, console: Console, headers: dict[str, str]) -> None:
        assert console.post("/keys", {"name": "n", "scopes": "device"}, **headers).status_code == 403

    @pytest.mark.parametrize("csrf", ["", "0" * 64, "\N{SNOWMAN}"])
    def test_without_what_the_page_gave_is_refused(self, console: Console, csrf: str) -> None:
        answer = console.post("/keys", {"name": "n", "scopes": "device", "csrf": csrf})
        assert answer.status_code == 403
        assert "another session" in words(answer)

    def test_of_another_session_is_refused(self, api: Api, console: Console) -> None:
        assert console.post("/logout", {"csrf": Console(api).csrf}).status_code == 403

    @pytest.mark.parametrize(
        ("body", "media_type", "status"),
        [
            (b"{}", "application/json", 400),
            (b"a=%FF", "application/x-www-form-urlencoded", 400),
            (b"\xff=1", "application/x-www-form-urlencoded", 400),
            (b"&".join(b"a%d=1" % i for i in range(300)), "application/x-www-form-urlencoded", 400),
            (b"a=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
            (b"", "application/x-www-form-urlencoded", 403),
        ],
        ids=["json", "no text", "no text at all", "too many fields", "too long", "empty"],
    )
    def test_that_is_none_is_refused(self, console: Console, body: bytes, media_type: str, status: int) -> None:
        headers = {"origin": ORIGIN, "cookie": console.cookie, "content-type": media_type}
        answer = console.http.post("/console/keys", content=body, headers=headers)
        assert answer.status_code == status

    def test_sent_twice_happens_once(self, api: Api, console: Console) -> None:
        form = {"name": "twice", "scopes": "device", "once": "frm_x"}
        first, second = console.post("/keys", form), console.post("/keys", form)
        assert re.search("sfk_[0-9a-f]{64}", first.text)
        assert second.status_code == 200
        assert not re.search("sfk_[0-9a-f]{64}", second.text)
        assert [key["name"] for key in api.get("/keys").json()["items"]].count("twice") == 1


class TestEveryAnswer:
    @pytest.mark.parametrize("path", [*PAGES, "/nothing", f"/jobs/{unknown('job')}", "/jobs/x"])
    def test_is_strict_about_what_a_browser_may_do(self, console: Console, path: str) -> None:
        answer = console.get(path)
        assert answer.headers["content-security-policy"] == POLICY
        assert "unsafe" not in POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"

    @pytest.mark.parametrize("path", [*PAGES, "/nothing"])
    def test_has_no_script_or_style_of_its_own_and_asks_nobody_else(self, console: Console, path: str) -> None:
        text = console.get(path).text
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", text)
        assert not re.findall(r'(?:src|href|action)="(?!/console|#)[^"]*"', text)

    def test_is_found_without_the_last_stroke(self, api: Api) -> None:
        answer = api.http.get("/console")
        assert (answer.status_code, answer.headers["location"]) == (308, "/console/")

    def test_of_a_file_may_be_kept_and_nothing_else_on_the_disk_is_one(self, api: Api) -> None:
        answer = api.http.get("/console/static/console.css")
        assert answer.headers["content-type"].startswith("text/css")
        assert answer.headers["cache-control"] == "public, max-age=3600"
        (named,) = re.findall(r'href="(/console/static/console\.css\?v=\w+)"', api.http.get("/console/login").text)
        assert api.http.get(named).headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "immutable" not in api.http.get(named + "0").headers["cache-control"]  # of another version
        again = api.http.get("/console/static/console.css", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304
        for path in ("%2e%2e/site.py", "../__init__.py", "templates/base.html", "vendor", ""):
            assert api.http.get(f"/console/static/{path}").status_code in (303, 404)

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
    def test_to_another_method_is_a_refusal(self, console: Console, method: str) -> None:
        headers = {"cookie": console.cookie, "origin": ORIGIN}
        assert console.http.request(method, "/console/jobs", headers=headers).status_code == 405

    def test_takes_a_time_that_nobody_logs(self, api: Api) -> None:
        """Pages hold what the API tells of records and of those who wait: so do their times."""
        console = Console(api)
        central = api.dataset(trust="central")
        with structlog.testing.capture_logs() as lines:
            console.get("/")
            console.get(f"/datasets/{central['id']}")
            api.get(f"/rounds/{unknown('rnd')}")  # whose time is logged
        assert ["ms" in line for line in lines] == [False, False, True]
        assert api.secret not in str(lines)
        assert console.token not in str(lines)
