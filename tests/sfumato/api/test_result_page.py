"""Test that the HTML page of a result is complete, has no scripts or external resources, and escapes all names."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest

from sfumato.api.resources import Charge, Result
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.feature_shares import FeatureCheck
from sfumato.model.precision import ExpectedAgreement, Verdict
from sfumato.profiles.cluster_profile import ClusterProfile, Distinguishing
from sfumato.specs import Feature, Place

HOSTILE = "<script src='//x.example'>&"
MODEL = ClusterModel(
    type="centroids",
    features=(Feature("east", 0.0, 10.0, "km"), Feature(HOSTILE, 0.0, 1.0)),
    sizes=np.array([0.7, 0.3]),
    size_errors=np.array([0.01, 0.02]),
    centroids=np.array([[2.0, 0.5], [8.0, 0.5]]),
    centroid_errors=np.full((2, 2), 0.05),
    verdict=Verdict.RELIABLE,
    verdict_reason="The loss is small.",
    expected_agreement=ExpectedAgreement(0.93, 0.85, 0.97),
    feature_check=FeatureCheck(0.08, np.array([0.0, 0.2]), np.array([9.0, 0.0]), (HOSTILE,), True),
    names=(HOSTILE, ""),
    warnings=("x < y & z",),
)
RESULT = Result(
    "job_1", "ds_1", {"type": "private_kmeans"}, 0.5, (), MODEL, "0.1.0", datetime(2026, 1, 2, tzinfo=UTC),
    (Charge("counts", 2, 500_000_000, "job_1#0"),), 1e-6,
)  # fmt: skip
VALUE = Distinguishing(1, "plan", HOSTILE, 0.42, 0.02, 0.11, 0.31, (0.2, 0.4), 3.8, (3.1, 4.7))
PROFILE = ClusterProfile(
    of="job_0",
    sizes=np.array([0.7, 0.3]),
    size_errors=np.array([0.01, 0.02]),
    attributes=(),
    distinctions=(VALUE,),
    too_small=(0,),
    false_discovery_rate=0.05,
    n_tested=4,
    names=MODEL.names,
)


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def page() -> str:
    return replace(RESULT, profile=PROFILE).to_html("People of <May>")


class TestPage:
    def test_has_no_scripts_and_no_external_resources(self, page: str) -> None:
        found = read(page)
        assert not {"script", "link", "iframe", "object", "base", "form", "a"} & set(found.tags)
        assert len(found.links) == 1
        assert found.links[0].startswith("data:image/svg+xml;base64,")
        assert not re.search(r"@import|url\(", page)
        assert "default-src 'none'" in page

    def test_states_clusters_cards_warnings_and_cost(self, page: str) -> None:
        text = " ".join(read(page).text.split())
        for expected in (
            "People of <May>",
            "Reliable. The loss is small.",
            "Another run would agree with these clusters to about 0.93 (80 % interval: 0.85 to 0.97). The clusters",
            "x < y & z",
            f"0, {HOSTILE}",
            "70.0 ± 1.0 %",
            "8 ± 0.05",
            "Share of the separation",
            "irrelevant",
            f"plan = {HOSTILE}",
            "42 % ± 2, elsewhere 11 %, 3.8 times",
            "Too few records to describe.",
            "ε = 0.5, δ = 1e-06 for each person in the records",
            "02 January 2026",
        ):
            assert expected in text, expected

    def test_has_longitudes_of_places_within_180_degrees(self) -> None:
        centroids = np.array([[-18.0, 187.3], [-15.0, 175.2]])
        places = replace(MODEL, features=Place(-21.0, 170.0, -12.0, -160.0).features, centroids=centroids)
        text = read(replace(RESULT, model=replace(places, feature_check=None)).to_html()).text
        assert "-172.7 ± 0.05" in text
        assert "187.3" not in text

    def test_of_reports_states_the_cost_of_an_installation(self) -> None:
        alone = replace(MODEL, centroids=None, centroid_errors=None, label_map=np.array([[0], [1]]), feature_check=None)
        text = read(replace(RESULT, model=alone, odometer=(), delta=0.0).to_html()).text
        assert "for each installation" in text
        assert "from perturbed reports" in text
        assert "What the clusters are" not in text

    def test_equal_results_give_equal_bytes(self) -> None:
        assert RESULT.to_html() == RESULT.to_html()
