"""Pages of named origins may fetch rounds and report; no other page may, and nothing else."""

from collections.abc import Callable

import httpx
import pytest

from models.settings import Settings
from tests.service.api import Api

APP = "https://app.example"
ELSEWHERE = "https://elsewhere.example"
ID = "01jd0b1v3tq5c9m8x2h7r4k6ez"
DOORS = {f"/v1/datasets/ds_{ID}/round": "GET", f"/v1/rounds/rnd_{ID}/reports": "POST"}
Started = Callable[..., Api]


def preflight(
    client: httpx.Client, path: str, method: str, origin: str = APP, headers: str = "authorization"
) -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return client.options(path, headers=asked)


def allowed(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


class TestOutOfTheBox:
    @pytest.mark.parametrize("path", DOORS)
    def test_no_page_of_another_origin_reads_anything(self, http: httpx.Client, path: str) -> None:
        answer = preflight(http, path, DOORS[path])
        assert answer.status_code == 401  # like every request without a key
        assert allowed(answer) == {}
        assert allowed(http.get(path, headers={"Origin": APP})) == {}


class TestPreflights:
    @pytest.mark.parametrize("path", DOORS)
    def test_of_a_named_origin_are_allowed_what_a_device_sends(self, started: Started, path: str) -> None:
        http = started(cors_origins=f"https://other.example, {APP}").http
        answer = preflight(http, path, DOORS[path], headers="authorization,content-type,if-none-match")
        assert answer.status_code == 200
        told = allowed(answer)
        assert told["access-control-allow-origin"] == APP
        assert told["access-control-allow-methods"] == DOORS[path]
        assert "access-control-allow-credentials" not in told
        assert "origin" in answer.headers["vary"].lower()

    @pytest.mark.parametrize("path", DOORS)
    @pytest.mark.parametrize(
        "origin", [ELSEWHERE, "https://app.example.elsewhere.example", "http://app.example", "null", f"{APP}:444"]
    )
    def test_of_any_other_are_not(self, started: Started, path: str, origin: str) -> None:
        answer = preflight(started(cors_origins=APP).http, path, DOORS[path], origin)
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in allowed(answer)

    @pytest.mark.parametrize("path", DOORS)
    def test_allow_no_other_method_and_no_other_header(self, started: Started, path: str) -> None:
        http = started(cors_origins=APP).http
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {DOORS[path]}:
            assert preflight(http, path, method).status_code == 400
        assert preflight(http, path, DOORS[path], headers="idempotency-key").status_code == 400

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/datasets",
            f"/v1/datasets/ds_{ID}",
            f"/v1/datasets/ds_{ID}/rounds",
            f"/v1/datasets/ds_{ID}/records",
            "/v1/jobs",
            "/v1/keys",
            f"/v1/rounds/rnd_{ID}",
            f"/v1/rounds/rnd_{ID}/close",
            f"/v1/datasets/ds_{ID}/round/",
            "/v1/datasets/a/b/round",
            "/healthz",
        ],
    )
    def test_of_every_other_path_are_allowed_nothing(self, started: Started, path: str) -> None:
        http = started(cors_origins="*").http
        for method in ("GET", "POST"):
            answer = preflight(http, path, method)
            assert answer.status_code >= 400
            assert allowed(answer) == {}
        assert allowed(http.get(path, headers={"Origin": APP})) == {}


class TestAnswers:
    def test_can_be_read_by_the_named_page_with_what_a_device_needs_of_them(self, started: Started) -> None:
        api = started(cors_origins=APP)
        made = api.dataset()
        opened = api.round(made["id"])
        answer = api.get(f"/datasets/{made['id']}/round", headers={"Origin": APP})
        assert answer.status_code == 200
        assert allowed(answer)["access-control-allow-origin"] == APP
        assert {"ETag", "Retry-After"} <= set(allowed(answer)["access-control-expose-headers"].split(", "))
        again = api.get(
            f"/datasets/{made['id']}/round", headers={"Origin": APP, "If-None-Match": answer.headers["etag"]}
        )
        assert (again.status_code, allowed(again)["access-control-allow-origin"]) == (304, APP)
        bad = api.post(f"/rounds/{opened['id']}/reports", {}, headers={"Origin": APP})
        assert (bad.status_code, allowed(bad)["access-control-allow-origin"]) == (422, APP)

    def test_that_refuse_can_be_read_too(self, started: Started) -> None:
        answer = started(cors_origins=APP).http.get(next(iter(DOORS)), headers={"Origin": APP})
        assert answer.json()["code"] == "unauthenticated"
        assert allowed(answer)["access-control-allow-origin"] == APP

    @pytest.mark.parametrize("origin", [None, ELSEWHERE])
    def test_say_to_caches_that_they_depend_on_the_origin(self, started: Started, origin: str | None) -> None:
        api = started(cors_origins=APP)
        made = api.dataset()
        answer = api.get(f"/datasets/{made['id']}/round", headers={} if origin is None else {"Origin": origin})
        assert "access-control-allow-origin" not in answer.headers
        assert "origin" in answer.headers["vary"].lower()

    def test_of_a_service_open_to_all_are_read_by_all(self, started: Started) -> None:
        api = started(cors_origins="*")
        made = api.dataset()
        answer = api.get(f"/datasets/{made['id']}/round", headers={"Origin": ELSEWHERE})
        assert allowed(answer)["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


class TestTheSetting:
    @pytest.mark.parametrize(
        "wrong",
        [
            "https://app.example/",
            "https://app.example/path",
            "app.example",
            "https://",
            "HTTPS://app.example",
            "https://*.example",
            "*, https://app.example",
            "null",
            "https://user@app.example",
            "https://app.example:port",
            "https://a\nb",
        ],
    )
    def test_takes_origins_as_browsers_send_them_and_nothing_else(self, no_settings: None, wrong: str) -> None:
        with pytest.raises(ValueError, match="origin as browsers send it"):
            Settings(cors_origins=wrong)

    def test_takes_schemes_of_apps_ports_and_addresses(self, no_settings: None) -> None:
        given = "capacitor://localhost, http://127.0.0.1:8080,http://[::1]:3000,"
        assert Settings(cors_origins=given).allowed_origins == (
            "capacitor://localhost",
            "http://127.0.0.1:8080",
            "http://[::1]:3000",
        )
        assert Settings().allowed_origins == ()
