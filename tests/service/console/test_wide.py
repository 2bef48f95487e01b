"""Pages of datasets and results with 1,536 features stay small."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.specs import Embedding
from tests.service.api import SQLITE_ONLY, Api, a_model
from tests.service.console.session import Console, words

MAX_PAGE_BYTES = 120_000
D, K = 1536, 20
MANY = [{"name": f"word {index}", "lower": -1.0, "upper": 1.0, "unit": ""} for index in range(D)]


def page(console: Console, path: str) -> str:
    """Return the words of a page, which must be small."""
    response = console.get(path)
    assert response.status_code == 200, response.text
    assert len(response.content) < MAX_PAGE_BYTES, path
    return words(response)


@SQLITE_ONLY
class TestADataset:
    def test_of_an_embedding_states_its_norm(self, api: Api, console: Console) -> None:
        dataset_id = self._create(api, {"dimensions": D, "norm": 2.5})
        assert "vectors with 1,536 features and an L2 norm of at most 2.5" in page(
            console, f"/datasets/{dataset_id}/settings"
        )
        assert "and 1524 more" in page(console, f"/datasets/{dataset_id}/records")
        assert "central · 1,536 features" in page(console, "/")

    def test_of_many_features_lists_the_first_64(self, api: Api, console: Console) -> None:
        dataset_id = self._create(api, MANY)
        text = page(console, f"/datasets/{dataset_id}/settings")
        assert "The first 64 of 1,536 features" in text
        assert ("word 63" in text, "word 64" in text) == (True, False)
        assert "and 1524 more" in page(console, f"/datasets/{dataset_id}/records")

    def test_of_an_embedding_is_created_by_the_form(self, api: Api, console: Console) -> None:
        form = {"name": "made", "trust": "central", "epsilon": "1", "dimensions": "1536", "norm": "", "delta": "1e-6"}
        assert console.post("/datasets", form).status_code == 303
        (created,) = api.get("/datasets").json()["items"]
        assert created["features"] == {"dimensions": D, "norm": 1.0}

    def _create(self, api: Api, features: Any) -> str:
        return str(api.dataset(trust="central", features=features)["id"])


@SQLITE_ONLY
class TestAResult:
    @pytest.mark.slow
    def test_shows_the_features_in_which_the_centres_differ_most(self, api: Api, console: Console) -> None:
        centroids = np.random.default_rng(0).normal(0, 0.01, size=(K, D))
        centroids[:, [7, 70, 700, 1500]] *= 20
        model = replace(
            a_model(labels=False),
            features=Embedding(D).features,
            sizes=np.full(K, 1 / K),
            size_errors=np.full(K, 0.01),
            centroids=centroids,
            centroid_errors=np.full((K, D), 0.001),
        )
        job_id, other_id = api.finished_job(model), api.finished_job(model)
        text = page(console, f"/jobs/{job_id}/result")
        assert "Of 1,536 features, those are shown in which the centres differ most" in text
        assert all(f"x{index}" in text.split() for index in (7, 70, 700, 1500))
        assert "x8" not in text.split()
        page(console, f"/compare?of={job_id}&of={other_id}")
        assert console.get(f"/jobs/{job_id}/map.json?across=7&up=1500").json()["up"]["name"] == "x1500"
        assert len(console.get(f"/jobs/{job_id}/map.json").content) < MAX_PAGE_BYTES
        lines = console.text(f"/jobs/{job_id}/clusters.csv").splitlines()
        assert len(lines) == K + 1
        assert {line.count(",") for line in lines} == {2 * D + 5}
