"""The ground of a counted number of clusters."""

import pytest

from clustering.phases.result import CLEAR_GAIN, LITTLE_GAIN, ClusterCount
from sfumato.model.precision import Verdict


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        (None, Verdict.RELIABLE),  # one cluster has a ground of its own
        ((9.0, CLEAR_GAIN), Verdict.RELIABLE),
        ((9.0, CLEAR_GAIN - 0.1), Verdict.UNCERTAIN),
        ((LITTLE_GAIN, 9.0), Verdict.UNCERTAIN),
        ((LITTLE_GAIN - 0.1, 9.0), Verdict.DOUBTFUL),
    ],
)
def test_clusters_that_gain_little_limit_the_verdict(gains: tuple[float, float] | None, verdict: Verdict) -> None:
    found = ClusterCount(3, 3, 8, [0.0, -1.0, -2.0], gains).ground()
    assert found.verdict is verdict
    assert ("more or fewer" in found.sentence) == (verdict is not Verdict.RELIABLE)
