"""Web pages of allowed origins may fetch rounds and send reports, and nothing else."""

from collections.abc import Callable

import httpx
import pytest

from runtime.settings import Settings
from tests.service.api import SQLITE_KIND_ONLY, SQLITE_ONLY, Api

APP = "https://app.example"
ELSEWHERE = "https://elsewhere.example"
ID = "01jd0b1v3tq5c9m8x2h7r4k6ez"
DEVICE_PATHS = {f"/v1/datasets/ds_{ID}/round": "GET", f"/v1/rounds/rnd_{ID}/reports": "POST"}
Started = Callable[..., Api]


def preflight(
    client: httpx.Client, path: str, method: str, origin: str = APP, headers: str = "authorization"
) -> httpx.Response:
    headers_sent = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": headers,
    }
    return client.options(path, headers=headers_sent)


def allowed(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


@SQLITE_ONLY
def test_there_are_no_cors_headers_by_default(http: httpx.Client) -> None:
    for path, method in DEVICE_PATHS.items():
        response = preflight(http, path, method)
        assert response.status_code == 401  # like every request without a key
        assert allowed(response) == allowed(http.get(path, headers={"Origin": APP})) == {}


@SQLITE_KIND_ONLY
class TestPreflights:
    def test_of_an_allowed_origin_get_the_headers_of_devices(self, started: Started) -> None:
        http = started(cors_origins=f"https://other.example, {APP}").http
        for path, method in DEVICE_PATHS.items():
            response = preflight(http, path, method, headers="authorization,content-type,if-none-match")
            assert response.status_code == 200
            headers = allowed(response)
            assert headers["access-control-allow-origin"] == APP
            assert headers["access-control-allow-methods"] == method
            assert "access-control-allow-credentials" not in headers
            assert "origin" in response.headers["vary"].lower()
            for other in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {method}:
                assert preflight(http, path, other).status_code == 400
            assert preflight(http, path, method, headers="idempotency-key").status_code == 400
            traced = "authorization,baggage,content-type,traceparent,tracestate"  # instrumented pages send these
            assert preflight(http, path, method, headers=traced).status_code == 200

    def test_of_another_origin_are_rejected(self, started: Started) -> None:
        http = started(cors_origins=APP).http
        for path, method in DEVICE_PATHS.items():
            for origin in (ELSEWHERE, f"{APP}.elsewhere.example", "http://app.example", "null", f"{APP}:444"):
                response = preflight(http, path, method, origin)
                assert response.status_code == 400
                assert "access-control-allow-origin" not in allowed(response)

    def test_of_other_paths_get_no_cors_headers(self, started: Started) -> None:
        http = started(cors_origins="*").http
        dataset, collection = f"/v1/datasets/ds_{ID}", f"/v1/rounds/rnd_{ID}"
        paths = ["/v1/datasets", dataset, f"{dataset}/rounds", f"{dataset}/records", f"{dataset}/round/", "/v1/jobs"]
        for path in (*paths, "/v1/keys", collection, f"{collection}/close", "/v1/datasets/a/b/round", "/healthz"):
            for method in ("GET", "POST"):
                response = preflight(http, path, method)
                assert response.status_code >= 400
                assert allowed(response) == {}
            assert allowed(http.get(path, headers={"Origin": APP})) == {}


@SQLITE_KIND_ONLY
class TestResponses:
    def test_expose_the_headers_that_a_device_needs(self, started: Started) -> None:
        api = started(cors_origins=APP)
        opened = api.round(api.dataset()["id"])
        path = f"/datasets/{opened['dataset_id']}/round"
        response = api.get(path, headers={"Origin": APP})
        assert response.status_code == 200
        assert allowed(response)["access-control-allow-origin"] == APP
        assert {"ETag", "Retry-After"} <= set(allowed(response)["access-control-expose-headers"].split(", "))
        again = api.get(path, headers={"Origin": APP, "If-None-Match": response.headers["etag"]})
        invalid = api.post(f"/rounds/{opened['id']}/reports", {}, headers={"Origin": APP})
        without_key = api.http.get(f"/v1{path}", headers={"Origin": APP})
        for each, status in ((again, 304), (invalid, 422), (without_key, 401)):
            assert (each.status_code, allowed(each)["access-control-allow-origin"]) == (status, APP)
        for headers in ({}, {"Origin": ELSEWHERE}):
            response = api.get(path, headers=headers)
            assert "access-control-allow-origin" not in response.headers
            assert "origin" in response.headers["vary"].lower()

    def test_with_a_wildcard_are_open_to_all_origins(self, started: Started) -> None:
        api = started(cors_origins="*")
        response = api.get(f"/datasets/{api.dataset()['id']}/round", headers={"Origin": ELSEWHERE})
        assert allowed(response)["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


class TestSetting:
    def test_rejects_origins_in_other_forms_than_browsers_send(self, no_settings: None) -> None:
        for wrong in (
            *(f"{APP}/", f"{APP}/path", "app.example", "https://", "HTTPS://app.example", "https://*.example"),
            *(f"*, {APP}", "null", "https://user@app.example", f"{APP}:port", "https://a\nb"),
        ):
            with pytest.raises(ValueError, match="form that browsers send"):
                Settings(cors_origins=wrong)

    def test_accepts_app_schemes_ports_and_addresses(self, no_settings: None) -> None:
        origins = ("capacitor://localhost", "http://127.0.0.1:8080", "http://[::1]:3000")
        assert Settings(cors_origins=", ".join(origins) + ",").allowed_origins == origins
        assert Settings().allowed_origins == ()
