"""Names of clusters over HTTP, in the command line and the console."""

import html
from pathlib import Path

import pytest

from models.database.engine import Database
from service.schemas.results import Result
from sfumato.api.client import Client
from sfumato.errors import InvalidSpec
from tests.service.api import SQLITE_ONLY, Api, a_model, finish, refused, stranger
from tests.service.api.test_profiles import clustered, profile_of, work
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, words


@pytest.fixture
def job_id(api: Api, database: Database) -> str:
    """Return a job with two clusters, of cells."""
    found = str(api.job(api.dataset()["id"])["id"])
    finish(database, found, a_model())
    return found


class TestNames:
    def test_are_in_the_result_labels_and_pictures_and_can_be_removed(self, api: Api, job_id: str) -> None:
        assert api.get(f"/jobs/{job_id}/result").json()["model"]["names"] == []
        named = api.patch(f"/jobs/{job_id}/result", {"names": ["west", "east <b>"]}).json()
        Result.model_validate(named)
        assert named == api.get(f"/jobs/{job_id}/result").json()
        assert named["model"]["names"] == ["west", "east <b>"]
        assert api.get(f"/jobs/{job_id}/labels").json()["names"] == ["west", "east <b>"]
        assert api.post(f"/jobs/{job_id}/assign", {"points": [[0.1, 0]]}).json() == {
            "labels": [0],
            "names": ["west", "east <b>"],
        }
        assert "east &lt;b&gt;" in api.get(f"/jobs/{job_id}/plot.svg").text
        assert api.patch(f"/jobs/{job_id}/result", {"names": []}).json()["model"]["names"] == []

    def test_cost_nothing_and_change_nothing_else(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, database)
        before, budget = api.get(f"/jobs/{job_id}/result").json(), api.budget(dataset_id)
        after = api.patch(f"/jobs/{job_id}/result", {"names": ["a", "b"]}).json()
        after["model"]["names"] = []
        assert (after, api.budget(dataset_id)) == (before, budget)

    def test_of_a_profile_are_those_of_its_clusters(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, database)
        profile = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": profile_of(job_id)})["id"]
        work(database, profile)
        api.patch(f"/jobs/{job_id}/result", {"names": ["a", "b"]})
        result = api.get(f"/jobs/{profile}/result").json()
        assert (result["model"]["names"], result["profile"]["names"]) == (["a", "b"], ["a", "b"])
        api.patch(f"/jobs/{profile}/result", {"names": ["", "c"]})
        assert api.get(f"/jobs/{job_id}/result").json()["model"]["names"] == ["", "c"]
        assert "Cluster 1 c :" in words(Console(api).get(f"/jobs/{profile}/result"))

    def test_that_are_invalid_are_refused(self, api: Api, job_id: str) -> None:
        path = f"/jobs/{job_id}/result"
        for names in (["a"], ["a", "a"], ["a", " b"], ["a\u200b", "b"], ["x" * 65, ""]):
            problem = refused(api.patch(path, {"names": names}), 422, "validation_failed")
            assert problem["errors"][0]["pointer"].startswith("/names")
        for body in ({}, {"names": None}, {"names": ["a", "b"], "other": 1}, {"names": "ab"}, {"names": [1, 2]}):
            refused(api.patch(path, body), 422, "validation_failed")
        assert api.get(path).json()["model"]["names"] == []

    def test_need_a_result_and_the_scope(self, api: Api, database: Database, job_id: str) -> None:
        waiting = api.job(api.dataset()["id"])["id"]
        refused(api.patch(f"/jobs/{waiting}/result", {"names": []}), 409, "job_not_finished")
        refused(stranger(api.http, database).patch(f"/jobs/{job_id}/result", {"names": ["a", "b"]}), 404, "not_found")
        refused(api.key("ledger").patch(f"/jobs/{job_id}/result", {"names": ["a", "b"]}), 403, "forbidden")


@SQLITE_ONLY
class TestClients:
    def test_name_some_clusters_or_all(
        self, api: Api, job_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
    ) -> None:
        connect_commands(api, monkeypatch)
        monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
        with Client("http://gateway", api.secret) as client:
            job = client.get_job(job_id)
            assert job.name_clusters(["west", "east"]).model.names == ("west", "east")
            assert client.name_clusters(job_id, {1: "orient"}).model.names == ("west", "orient")
            assert client.name_clusters(job_id, {0: "", 1: ""}).model.names == ()
            with pytest.raises(InvalidSpec, match="0 to 1"):
                client.name_clusters(job_id, {2: "north"})
            with pytest.raises(InvalidSpec, match="list of names"):
                client.name_clusters(job_id, "ab")
        shown = run_command("jobs", "name", job_id, "0=west", "1=far = east")
        assert "west" in shown.output
        assert "far = east" in shown.output
        run_command("jobs", "name", job_id, status=2)
        run_command("jobs", "name", job_id, "west=0", status=2)
        assert "west" not in run_command("jobs", "name", job_id, "--clear").output


@SQLITE_ONLY
class TestTheConsole:
    def test_names_clusters_beside_the_table(self, api: Api, job_id: str) -> None:
        console = Console(api)
        answer = console.post(f"/jobs/{job_id}/names", {"name": ["west", "=east"]})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/console/jobs/{job_id}/result#clusters")
        page = console.text(f"/jobs/{job_id}/result")
        assert page.count("<bdi>west</bdi>") >= 2  # the legend and the table
        assert "0,west," in console.get(f"/jobs/{job_id}/clusters.csv").text
        assert "1,'=east," in console.get(f"/jobs/{job_id}/clusters.csv").text
        again = console.text(f"/compare?of={job_id}&of={job_id}")
        assert again.count("<bdi>west</bdi>") == 2

    def test_shows_a_rejected_name_with_what_was_given(self, api: Api, job_id: str) -> None:
        console = Console(api)
        answer = console.post(f"/jobs/{job_id}/names", {"name": ["same", "same"]})
        assert answer.status_code == 422
        assert "must be unique" in html.unescape(answer.text)
        assert answer.text.count('value="same"') == 2
