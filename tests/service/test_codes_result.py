"""A result of codes over HTTP: labels of symbols, a picture of sizes, and labels for points."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from models.db import Database
from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.specs import LATTICE, Feature, HalfspaceCodeEncoding
from tests.service.api import FEATURES, Api, finish, refused

ALGORITHM = {"type": "valley_hashing", "epsilon": 1.0, "clusters": 2}


def codes() -> ClusterModel:
    """Left, and right of the first feature's middle; the second cut tells nothing."""
    return ClusterModel(
        type="codes",
        features=tuple(Feature(**feature) for feature in FEATURES),  # type: ignore[arg-type]
        sizes=np.array([0.75, 0.25]),
        size_errors=np.array([0.01, 0.01]),
        encoding=HalfspaceCodeEncoding(((1, 0), (0, 1)), (LATTICE // 2, LATTICE // 2)),
        label_map=np.array([0, 1, 0, 1]),
        density=np.array([0.5, 0.25, 0.25, 0.0]),
        diagnostics={"n_reports": 1000},
        privacy={"sizes": "post_processed"},
    )


@pytest.fixture
def finished(api: Api, database: Database) -> str:
    job = api.job(api.dataset()["id"], algorithm=ALGORITHM)
    finish(database, job["id"], codes())
    return str(job["id"])


class TestCodes:
    def test_come_as_the_worker_left_them(self, api: Api, finished: str) -> None:
        model = api.get(f"/jobs/{finished}/result").json()["model"]
        assert model == codes().to_wire()
        assert model_from_wire(model).encoding == codes().encoding

    def test_have_a_label_for_every_symbol(self, api: Api, finished: str) -> None:
        labels = api.get(f"/jobs/{finished}/labels").json()
        assert labels == {"type": "cells", "grid_shape": [4], "labels": [0, 1, 0, 1]}

    def test_are_drawn_by_their_sizes(self, api: Api, finished: str) -> None:
        picture = api.get(f"/jobs/{finished}/plot.svg")
        assert picture.status_code == 200
        assert ElementTree.fromstring(picture.text).tag.endswith("svg")  # noqa: S314  # our own document
        assert "share of people (%)" in picture.text

    def test_label_points_in_the_features_units(self, api: Api, finished: str) -> None:
        lower, upper = ([feature[end] for feature in FEATURES] for end in ("lower", "upper"))
        assert api.made(f"/jobs/{finished}/assign", {"points": [lower, upper]}) == {"labels": [0, 1]}
        refused(api.post(f"/jobs/{finished}/assign", {"points": [[1.0]]}), 422, "validation_failed")
