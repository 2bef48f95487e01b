"""Accounting in the console: its control, what was spent, jobs that state mu, and the page of a source."""

from tests.service.api import SQLITE_ONLY, Api
from tests.service.console.session import DATASET, Console, words

WIDE = "\n".join(f"x{i}, 0, 1" for i in range(5))
CENTRAL = DATASET | {"trust": "central", "features": WIDE, "delta": "1e-6", "epsilon": "2"}

pytestmark = SQLITE_ONLY


class TestControl:
    def test_sets_the_accounting(self, api: Api, console: Console) -> None:
        for form, expected in (({}, "gaussian"), ({"accounting": "additive"}, "additive")):
            assert api.get(console.location("/datasets", CENTRAL | form)).json()["accounting"] == expected

    def test_explains_a_missing_delta(self, console: Console) -> None:
        response = console.post("/datasets", CENTRAL | {"accounting": "gaussian", "delta": ""})
        assert response.status_code == 422
        assert 'id="f-accounting-wrong"' in response.text
        assert "needs a delta" in response.text


class TestBudget:
    def test_is_stated_in_three_ways(self, api: Api, console: Console) -> None:
        path = console.location("/datasets", CENTRAL)
        block = {"type": "private_kmeans", "epsilon": 0.2, "delta": 1e-8, "clusters": 3}
        api.key("jobs").made("/jobs", {"dataset_id": path.rpartition("/")[2], "algorithm": block})
        page = console.text(path)
        assert "Remaining (Gaussian)" in page
        assert "99.1 %" in page
        assert '<rect class="bar-remaining" width="99.11"' in page
        assert "allows 111 more jobs like" in words(console.get(f"{path}/ledger"))

    def test_forecasts_a_job_that_states_mu(self, console: Console) -> None:
        path = console.location("/datasets", CENTRAL)
        form = {
            "type": "private_kmeans",
            "mu": "0.0424",
            "clusters": "3",
            "expected_records": "10000",
            "step": "review",
        }
        page = words(console.post(f"{path}/jobs", form))
        assert "This job costs 1 of the 111 jobs like it that remain, of 111 in all." in page
        assert "Confirm job" in page


class TestSource:
    def test_has_all_datasets_of_these_people(self, api: Api, console: Console) -> None:
        for name in ("ward", "ward"):
            path = console.location("/datasets", CENTRAL | {"name": name, "source": "staff"})
        assert '/console/sources/staff"' in console.text(path)
        page = words(console.get("/sources/staff"))
        assert "These 2 datasets count as datasets over the same people." in page
        assert "Limit none" in page

    def test_without_a_label_has_those_of_a_name(self, console: Console) -> None:
        path = console.location("/datasets", CENTRAL | {"name": "Ärzte & co"})
        assert "/console/sources/-?name=" in console.text(path)
        assert "Datasets named Ärzte &" in words(console.get("/sources/-?name=%C3%84rzte+%26+co"))

    def test_that_does_not_exist_is_not_found(self, console: Console) -> None:
        assert console.get("/sources/nobody").status_code == 404
