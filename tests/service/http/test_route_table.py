"""The table of paths: each entry is a path of the gateway, and other paths get the strict defaults."""

from service.console.app import PAGES
from service.http.route_table import ENTRIES, OPEN_ROUNDS, REPORTS, Body, Kind, Rate, find
from tests.service.api import SQLITE_ONLY, Api


@SQLITE_ONLY
class TestEntries:
    def test_are_paths_and_methods_of_the_gateway(self, api: Api) -> None:
        document = api.http.get("/openapi.json").json()
        paths = {path: {method.upper() for method in methods} for path, methods in document["paths"].items()}
        for page in PAGES:
            paths.setdefault(f"/console{page.path}", set()).add(page.method)
        for entry in ENTRIES:
            assert entry.template in paths
            assert paths[entry.template] >= {*entry.timed, *([entry.cors] if entry.cors else [])}

    def test_need_a_key_where_the_document_does(self, api: Api) -> None:
        for path, methods in api.http.get("/openapi.json").json()["paths"].items():
            needs_key = any(operation["security"] for operation in methods.values())
            assert find(path)[0].needs_key is needs_key, path


class TestFind:
    def test_returns_the_entry_and_the_id(self) -> None:
        assert find("/v1/rounds/rnd_1/reports") == (REPORTS, "rnd_1")
        assert find("/v1/datasets/ds_1/round") == (OPEN_ROUNDS, "ds_1")
        assert find("/v1/rounds/rnd_1/batches")[0].body is Body.UPLOAD

    def test_gives_all_other_paths_a_key_the_small_limit_and_no_duration(self) -> None:
        for path in (
            "/v1", "/v1x", "/v1/", "/v1/rounds/a/b/reports", "/v1/rounds//reports", "/v1/rounds/a/reports\n",
            "/v1/rounds/a/reports/", "/v1/datasets/a/round/b/records", "/v1/jobs/a/events/",
        ):  # fmt: skip
            entry, path_id = find(path)
            assert (entry.kind, entry.body, entry.rate, entry.cors) == (Kind.API, Body.DOCUMENT, Rate.KEY, None), path
            assert (entry.timed, path_id) == ((), "")
        for path in ("/", "/docs", "/console/keys", "/healthz/", "/readyzz", ""):
            entry, _ = find(path)
            assert (entry.kind, entry.body, entry.timed, entry.cors) == (Kind.PUBLIC, Body.DOCUMENT, (), None), path
