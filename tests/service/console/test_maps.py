"""Tests of the data of maps, of separation, and of the comparison of two results."""

import base64
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.database.engine import Database
from service.console.maps import MAX_SIDE, map_of, shown_features
from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting.shading import colour
from sfumato.records.mixed import expand_features
from sfumato.specs import Feature, Place
from sfumato.specs.attributes import Categorical
from tests.service.api import SQLITE_ONLY, Api, a_model, finish, unknown
from tests.service.console.session import Console, words
from tests.sfumato.plotting.test_figures import centroids, label_map


def result(api: Api, model: ClusterModel) -> str:
    """Create a finished job with the model. Return its id."""
    numeric = model.features[: model.n_numeric]
    features = [{"name": f.name, "lower": f.lower, "upper": f.upper, "unit": f.unit} for f in numeric]
    return api.finished_job(replace(model, size_errors=np.full(model.n_clusters, 0.004)), features=features)


def by_category() -> ClusterModel:
    """Return a map with a cluster in each of two categories, at nearly the same place."""
    plan = Categorical("plan", ("free", "pro"), use="cluster")
    density = np.stack([np.full((4, 4), 0.05), np.full((4, 4), 0.0125)], axis=-1)
    return ClusterModel(
        "label_map",
        expand_features((Feature("east", 0, 1), Feature("north", 0, 1)), (plan,)),
        np.array([0.8, 0.2]),
        np.full(2, 0.01),
        centroids=np.array([[0.3, 0.4, 1, 0], [0.302, 0.4, 0, 1]]),
        centroid_errors=np.array([[0.01, 0.01, 0, 0]] * 2),
        label_map=np.tile(np.arange(2), (4, 4, 1)),
        density=density,
        attributes=(plan,),
    )


def cells(document: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Decode labels and density of a map. Rows start at the bottom."""
    shape = document["cells"]["rows"], document["cells"]["columns"]
    labels = np.frombuffer(base64.b64decode(document["cells"]["labels"]), "<u2").reshape(shape)
    density = np.frombuffer(base64.b64decode(document["cells"]["density"]), "<f4").reshape(shape)
    return labels, density


class TestAMap:
    def test_contains_the_values_of_the_model(self) -> None:
        model = replace(label_map(), centroid_errors=np.full((3, 2), 0.5))
        found = map_of(model, (0, 1))
        labels, density = cells(found)
        assert model.density is not None
        assert model.label_map is not None
        assert np.array_equal(labels, model.label_map.T)
        assert density == pytest.approx(model.density.T, rel=1e-6)
        assert found["cells"]["reach"] == (1.0, 1.0)
        assert found["centres"][1]["reach"] == pytest.approx([0.5 * 2.44775] * 2, rel=1e-5)
        assert found["colours"] == [colour(each)[1] for each in range(3)]
        assert (found["coasts"], found["scale"]) == ([], None)
        assert found["ratio"] == 1.0  # equal units
        assert found["doubtful"] == [False] * 3
        noisy = replace(model, size_errors=np.array([0.01, 0.01, model.sizes[2]]), centroid_errors=None)
        assert map_of(noisy, (0, 1))["doubtful"] == [False, False, True]

    def test_of_a_category_has_the_doubts_and_the_scale_of_the_whole_result(self) -> None:
        whole = by_category()
        free, pro = (map_of(whole, (0, 1), category=place) for place in range(2))
        assert free["doubtful"] == pro["doubtful"] == [False, False]
        assert (cells(free)[0] == 0).all()
        assert (cells(pro)[0] == 1).all()
        for each in (free, pro):
            assert each["cells"]["mean"] == pytest.approx(1 / 32)
            assert each["cells"]["peak"] == pytest.approx(math.log1p(0.05 * 32))

    @SQLITE_ONLY
    def test_of_each_category_has_a_place_of_its_own(self, api: Api, console: Console) -> None:
        page = console.text(f"/jobs/{result(api, by_category())}/result")
        assert re.findall(r'<div class="(columns|beside)">', page) == ["columns"]
        assert re.findall(r"<figcaption>([^<]+)", page) == ["plan = free", "plan = pro"]
        page = console.text(f"/jobs/{result(api, label_map())}/result")
        assert re.findall(r'<div class="(columns|beside)">', page) == ["beside"]

    def test_of_many_categories_shows_the_features_of_its_axes(self) -> None:
        """The centres differ more in the categories than in the features."""
        n = 70
        plan = Categorical("plan", tuple(f"plan {place}" for place in range(n)), use="cluster")
        places = np.column_stack([np.linspace(0.4, 0.41, n), np.linspace(0.6, 0.61, n), np.eye(n)])
        model = ClusterModel(
            "label_map",
            expand_features((Feature("east", 0, 1), Feature("north", 0, 1)), (plan,)),
            np.full(n, 1 / n),
            np.full(n, 0.001),
            centroids=places,
            label_map=np.tile(np.arange(n), (4, 4, 1)),
            density=np.full((4, 4, n), 1 / 16 / n),
            attributes=(plan,),
        )
        shown = shown_features(model)
        assert list(shown.items())[:2] == [(0, "east"), (1, "north")]
        assert len(shown) < 8

    @pytest.mark.parametrize("size", [MAX_SIDE + 1, 300, 1024])
    def test_of_a_fine_grid_has_blocks_with_the_same_total_density(self, size: int) -> None:
        model = label_map(cells=size)
        found = map_of(model, (0, 1))
        labels, density = cells(found)
        assert max(labels.shape) <= MAX_SIDE
        assert len(str(found)) < 160_000
        assert density.sum() == pytest.approx(1, rel=1e-5)
        assert set(np.unique(labels)) == {0, 1, 2}
        block = -(-size // MAX_SIDE)
        assert found["cells"]["reach"] == pytest.approx([labels.shape[1] * block / size] * 2)
        assert model.label_map is not None
        assert labels[0, 5] == model.label_map[5 * block + block // 2, 0]

    def test_of_a_place_shows_areas_as_they_are(self) -> None:
        features = Place(58.0, 5.0, 71.2, 31.2).features
        found = map_of(replace(label_map(), features=features), (1, 0))
        assert (found["up"]["sines"], found["across"]["sines"]) == (True, False)
        assert (found["up"]["turns"], found["across"]["turns"]) == (False, True)
        middle = math.cos(math.radians(64.6))
        height = (math.sin(math.radians(71.2)) - math.sin(math.radians(58.0))) / middle
        assert found["ratio"] == pytest.approx(math.radians(26.2) * middle / height)
        assert found["scale"]["text"] == "200 km at 64.6°N"
        assert found["scale"]["degrees"] == pytest.approx(200 / (6371 * math.radians(1) * middle))

    def test_of_the_world_has_coasts_meridians_and_a_scale(self) -> None:
        features = (Feature("latitude", -90.0, 90.0, "degrees"), Feature("longitude", -180.0, 180.0, "degrees"))
        found = map_of(replace(label_map(), features=features), (1, 0))
        assert found["across"]["name"] == "longitude"
        assert found["ratio"] == pytest.approx(2.0)
        assert len(found["coasts"]) > 100
        assert (found["meridians"][0], found["parallels"][-1]) == (-180, 90)
        assert found["scale"]["text"] == "10,000 km at 0°"
        assert len(str(found)) < 120_000

    @SQLITE_ONLY
    def test_across_180_degrees_has_a_table_of_longitudes_within_180_degrees(self, api: Api, console: Console) -> None:
        centroids = np.array([[-18.0, 187.3], [-15.0, 175.2]])
        model = replace(a_model(), features=Place(-21.0, 170.0, -12.0, -160.0).features, centroids=centroids)
        path = f"/jobs/{result(api, model)}"
        text = words(console.get(f"{path}/result"))
        assert text.count("-172.7") >= 2  # the table has the centre, and the feature in which it differs most
        assert "187.3" not in text
        assert "175.2" in text
        _, first, second = console.text(f"{path}/clusters.csv").splitlines()
        assert [float(line.split(",")[4]) for line in (first, second)] == pytest.approx([-172.7, 175.2])

    @SQLITE_ONLY
    def test_of_places_is_downloaded_as_geojson(self, api: Api, console: Console) -> None:
        features = (Feature("latitude", -90.0, 90.0, "degrees"), Feature("longitude", 0.0, 360.0, "degrees"))
        path = f"/jobs/{result(api, replace(label_map(), features=features))}"
        assert f"{path}/result.geojson" in console.text(f"{path}/result")
        response = console.get(f"{path}/result.geojson")
        assert response.headers["content-type"] == "application/geo+json"
        assert response.headers["content-disposition"].endswith('.geojson"')
        assert response.json()["bbox"] == [-180.0, -90.0, 180.0, 90.0]
        plain = f"/jobs/{result(api, label_map())}"
        assert "geojson" not in console.text(f"{plain}/result")
        assert console.get(f"{plain}/result.geojson").status_code == 404

    @SQLITE_ONLY
    def test_shows_the_requested_features(self, api: Api, console: Console) -> None:
        job_id = result(api, label_map(3))
        for query, names in (("", ["across", "up"]), ("?across=2&up=0", ["deep", "across"])):
            found = console.get(f"/jobs/{job_id}/map.json{query}").json()
            assert [found["across"]["name"], found["up"]["name"]] == names
        for query in ("?across=0&up=0", "?across=3&up=0", "?across=-1&up=0", "?across=x&up=0", "?across=0", "?up=٣"):
            assert console.get(f"/jobs/{job_id}/map.json{query}").status_code == 404, query

    @SQLITE_ONLY
    @pytest.mark.parametrize("model", [label_map(1), centroids(2, clusters=0)])
    def test_without_a_plane_or_clusters_still_has_a_page(
        self, api: Api, console: Console, model: ClusterModel
    ) -> None:
        job_id = result(api, model)
        assert console.get(f"/jobs/{job_id}/map.json").status_code == 200
        assert "plot.svg" in console.text(f"/jobs/{job_id}/result")

    @SQLITE_ONLY
    def test_of_64_features_offers_every_pair(self, api: Api, console: Console) -> None:
        job_id = result(api, centroids(64, clusters=3))
        page = console.text(f"/jobs/{job_id}/result")
        assert len(re.findall(r"<option", page)) == 128
        found = console.get(f"/jobs/{job_id}/map.json?across=63&up=5").json()
        assert found["cells"] is None
        assert len(found["centres"]) == 3


@SQLITE_ONLY
class TestSeparation:
    def test_is_shown_with_its_privacy_status_and_in_the_csv(self, api: Api, console: Console) -> None:
        path = f"/jobs/{result(api, label_map())}"
        text = words(console.get(f"{path}/result"))
        assert "Separation post_processed Computed only from the released centres and densities" in text
        assert "The silhouette over all people is 0." in text
        lines = console.text(f"{path}/clusters.csv").splitlines()
        assert lines[0].endswith("silhouette,nearest,distance")
        assert lines[1].split(",")[-2] == "1"

    def test_nested_divisions_are_listed_with_their_agreement(self, api: Api, console: Console) -> None:
        agreement = {"value": 0.91, "lower": 0.8, "upper": 1.0}
        coarse = {"clusters": 2, "sizes": [0.75, 0.25], "parents": [], "labels": None}
        fine = {"clusters": 3, "sizes": [0.5, 0.25, 0.25], "parents": [0, 1, 0], "labels": [1, 1, 0, 2]}
        levels = [each | {"expected_agreement": agreement} for each in (coarse, fine)]
        model = replace(a_model(), diagnostics={"levels": levels, "merges": []})
        text = words(console.get(f"/jobs/{result(api, model)}/result"))
        assert "2 clusters, of which 1 divides: one of 75 % into 2 of 50 % and 25 %." in text
        assert "3 0.91 (0.80 to 1.00) 50 %, 25 %, 25 %" in text

    def test_without_density_names_its_source(self, api: Api, console: Console) -> None:
        text = words(console.get(f"/jobs/{result(api, centroids(3))}/result"))
        assert "Levels" not in text
        assert "Computed only from the released centres," in text
        assert "The silhouette over all people is" not in text


@SQLITE_ONLY
class TestTwoResults:
    def pair(self, api: Api) -> tuple[str, str]:
        model = label_map()
        assert model.label_map is not None
        assert model.centroids is not None
        turned = replace(
            model, label_map=2 - model.label_map, centroids=model.centroids[::-1], sizes=np.array([0.35, 0.45, 0.2]),
            density=None,
        )  # fmt: skip
        return result(api, model), result(api, turned)

    def test_are_matched_and_compared_with_the_noise(self, api: Api, console: Console) -> None:
        left, right = self.pair(api)
        page = console.get(f"/compare?of={left}&of={right}")
        text = words(page)
        assert "Both results assign 100.0 % of people to matched clusters" in text
        assert re.search(r"0 2 100\.0 % \S+ % ± 0\.4 % 20\.0 % ± 0\.4 %", text)
        assert re.search(r"% ± 0\.6 % (yes|no)", text)
        assert text.count("yes 0 across 0 m ; up 0 m") == 3  # matched clusters have the same centres
        offered = re.findall(r'<option value="(job_\w+)"(?: selected)?>([^<]+)<', page.text)
        assert {each for each, _ in offered} == {left, right}
        assert all("ε" in label and " · " in label for _, label in offered)

    def test_show_the_moves_of_centres_with_units_and_errors(self, api: Api, console: Console) -> None:
        model = label_map()
        assert model.centroids is not None
        errors = np.full(model.centroids.shape, 0.03)
        moved = replace(model, centroids=model.centroids + np.array([0.2, 0]), centroid_errors=errors)
        left, right = result(api, replace(model, centroid_errors=errors)), result(api, moved)
        text = words(console.get(f"/compare?of={left}&of={right}"))
        assert text.count("across +0.20 ± 0.04 m ; up 0.00 ± 0.04 m") == 3

    def test_may_be_up_to_six(self, api: Api, console: Console) -> None:
        left, right = self.pair(api)
        page = console.get(f"/compare?of={left}&of={right}&of={left}&of=")
        text = words(page)
        assert "A and B" in text
        assert "A and C" in text
        assert text.count("Both results assign 100.0 %") == 2
        assert re.findall(r'data-map="[^"]+at=(\d)"', page.text) == ["0", "1", "2"]
        assert page.text.count("<select") == 4
        six = "&".join([f"of={left}"] * 6)
        assert console.get(f"/compare?{six}").text.count("<select") == 6
        assert "compare at most 6 results" in words(console.get(f"/compare?{six}&of={left}"))
        for at in ("2", "-1", "x", ""):
            assert console.get(f"/compare.json?of={left}&of={right}&at={at}").status_code == 422

    def test_have_one_scale_and_one_colour_for_each_match(self, api: Api, console: Console) -> None:
        left, right = self.pair(api)
        compare = f"/compare.json?of={left}&of={right}&at="
        maps = [console.get(f"{compare}{at}").json() for at in (0, 1)]
        assert maps[1]["colours"] == maps[0]["colours"][::-1]
        twice = f"/compare.json?of={left}&of={left}&at="
        peaks = [console.get(f"{twice}{at}").json()["cells"]["peak"] for at in (0, 1)]
        assert peaks[0] == peaks[1] > 0

    def test_with_different_features_are_rejected_with_a_message(self, api: Api, console: Console) -> None:
        left, right = result(api, label_map(2)), result(api, label_map(3))
        page = console.get(f"/compare?of={left}&of={right}")
        assert page.status_code == 409
        assert "these results are of different features or bounds" in words(page)
        assert console.get(f"/compare.json?of={left}&of={right}&at=1").status_code == 409

    def test_that_do_not_exist_are_not_found(self, api: Api, console: Console) -> None:
        left = api.finished_job()
        for right in (unknown("job"), "..%2f..%2fkeys", "job_%00", "%2e%2e", "jøb"):
            assert console.get(f"/compare?of={left}&of={right}").status_code in (404, 422), right
        waits = api.job(api.dataset()["id"])["id"]
        assert console.get(f"/compare?of={left}&of={waits}").status_code == 409

    def test_are_offered_on_the_page_of_a_result(self, api: Api, console: Console, database: Database) -> None:
        assert "Compare results" in words(console.get("/compare"))
        dataset_id = api.dataset()["id"]
        ids = [api.job(dataset_id)["id"] for _ in range(3)]
        for job_id in ids[:2]:
            finish(database, job_id, a_model())
        page = console.text(f"/jobs/{ids[0]}/result")
        assert re.findall(r'<option value="(job_[^"]+)"', page) == [ids[1]]
