"""Filters and order of lists."""

import pytest

from models.tables.identity import Act
from tests.service.api import Api, refused, unknown

GRANT = {"epsilon": 1}


def ids(api: Api, path: str, query: str = "") -> list[str]:
    """Return the ids of all pages of a list, in the order of the service."""
    found: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"{path}?limit=2{query}{cursor}")
        assert page.status_code == 200, page.text
        found += [item["id"] for item in page.json()["items"]]
        if page.json()["next_cursor"] is None:
            return found
        cursor = f"&cursor={page.json()['next_cursor']}"


class TestOrder:
    def test_is_newest_first_and_each_item_is_on_one_page(self, api: Api) -> None:
        datasets = [api.dataset(name=f"d{number}")["id"] for number in range(5)]
        at = f"/datasets/{datasets[0]}"
        rounds = [api.round(datasets[0], epsilon=0.1)["id"] for _ in range(5)]
        jobs = [api.job(each)["id"] for each in datasets]
        keys = [api.made("/keys", {"name": "k", "scopes": ["device"]})["id"] for _ in range(4)]
        for path, made in (("/datasets", datasets), (f"{at}/rounds", rounds), ("/jobs", jobs)):
            assert ids(api, path) == sorted(made, reverse=True)
            assert ids(api, path, "&order=oldest") == sorted(made)
        assert ids(api, "/keys")[: len(keys)] == sorted(keys, reverse=True)
        for path in (f"{at}/ledger", "/audit"):
            newest, oldest = ids(api, path), ids(api, path, "&order=oldest")
            assert newest == oldest[::-1]
            assert len(set(newest)) == len(newest) > 5

    def test_wrong_names_the_known_ones(self, api: Api) -> None:
        detail = refused(api.get("/jobs?order=ascending"), 422, "validation_failed")["detail"]
        assert "'newest' or 'oldest'" in detail


class TestJobs:
    @pytest.fixture
    def jobs(self, api: Api) -> list[dict[str, str]]:
        first, second = api.dataset()["id"], api.dataset()["id"]
        shifted = {"type": "shifted_grid", "epsilon": 1, "clusters": 3}
        made = [api.job(first), api.job(first, algorithm=shifted, target_reports=100_000), api.job(second)]
        api.made(f"/jobs/{made[2]['id']}/cancel", None)
        return [api.get(f"/jobs/{each['id']}").json() for each in made]

    def test_are_filtered_by_dataset_state_algorithm_and_time(self, api: Api, jobs: list[dict[str, str]]) -> None:
        first, second, third = (each["id"] for each in jobs)
        for query, found in (
            (f"&dataset_id={jobs[0]['dataset_id']}", [second, first]),
            ("&state=canceled", [third]),
            ("&state=queued", [second, first]),
            ("&algorithm=shifted_grid", [second]),
            ("&algorithm=private_kmeans", []),
            (f"&created_after={jobs[1]['created_at']}", [third]),
            (f"&created_before={jobs[1]['created_at']}", [first]),
            ("&created_after=2020-01-01T00:00:00Z&state=queued&algorithm=uniform_grid", [first]),
            ("&created_before=2020-01-01T00:00:00%2B01:00", []),
        ):
            assert ids(api, "/jobs", query) == found, query

    @pytest.mark.parametrize(
        ("query", "known"),
        [
            ("state=nonsense", "'queued', 'running', 'collecting', 'succeeded', 'failed', 'canceled' or 'expired'"),
            ("algorithm=nonsense", "'shifted_grid'"),
            ("created_after=yesterday", "RFC 3339"),
            ("created_before=2026-01-01", "RFC 3339"),
            ("dataset_id=x", "pattern"),
            ("state=", "no value"),
        ],
    )
    def test_refuse_wrong_values_and_name_the_known_ones(self, api: Api, query: str, known: str) -> None:
        assert known in refused(api.get(f"/jobs?{query}"), 422, "validation_failed")["detail"]


class TestOthers:
    def test_datasets_are_filtered_by_name_source_and_trust(self, api: Api) -> None:
        local = api.dataset(name="same", source="ward-1")["id"]
        central = api.dataset(name="same", trust="central")["id"]
        other = api.dataset(name="same too")["id"]
        assert ids(api, "/datasets", "&name=same") == [central, local]
        assert ids(api, "/datasets", "&name=same%20too") == [other]
        assert ids(api, "/datasets", "&source=ward-1") == [local]
        assert ids(api, "/datasets", "&trust=central") == [central]
        assert ids(api, "/datasets", "&trust=local&name=same") == [local]
        detail = refused(api.get("/datasets?trust=none"), 422, "validation_failed")["detail"]
        assert "'local', 'shuffled' or 'central'" in detail

    def test_rounds_are_filtered_by_state(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        kept, closed = (api.round(dataset_id)["id"] for _ in range(2))
        api.made(f"/rounds/{closed}/close?allow_empty=true", None)
        assert ids(api, f"/datasets/{dataset_id}/rounds", "&state=open") == [kept]

    def test_ledger_entries_are_filtered_by_kind(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        for _ in range(3):
            api.made(f"/datasets/{dataset_id}/grants", GRANT)
        api.round(dataset_id)
        path = f"/datasets/{dataset_id}/ledger"
        for kind, number in (("grant", 4), ("charge", 1), ("reserve", 0), ("release", 0)):
            assert len(ids(api, path, f"&kind={kind}")) == number
        assert "'grant', 'reserve'" in refused(api.get(f"{path}?kind=x"), 422, "validation_failed")["detail"]

    def test_audit_events_are_filtered_by_actor_action_and_object(self, api: Api) -> None:
        first, second = api.dataset()["id"], api.dataset()["id"]
        officer = api.key("grants")
        officer.made(f"/datasets/{first}/grants", GRANT)
        actor = officer.caller().key_id
        (granted,) = ids(api, "/audit", f"&actor={actor}")
        assert ids(api, "/audit", "&action=grant.created") == [granted]
        assert len(ids(api, "/audit", f"&object={second}")) == 1
        assert ids(api, "/audit", f"&object={unknown('ds')}") == []
        detail = refused(api.get("/audit?action=granted"), 422, "validation_failed")["detail"]
        assert all(f"'{act}'" in detail for act in Act)
