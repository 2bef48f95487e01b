"""Windows of noisy counts of records: their noise, their pool, and the whole step."""

from itertools import count

import numpy as np
import pytest

from clustering.density.count_fit import draw_counts, noise_variance
from clustering.errors import UnfitRound
from clustering.series.channels import read_channels, variances
from clustering.series.follow import Memory, Step, follow
from clustering.series.observed import Counted, scale_of
from clustering.series.shares import window_shares
from sfumato.specs import DensityMap
from tests.clustering.series.populations import FEATURES, blobs

CELLS = 32
N = 20_000
QUIET = blobs((0.6, 0.25, 0.5), (0.4, 0.75, 0.5))


def observe(density: np.ndarray, window: int, *, scale: float = 10.0, n: int = N) -> Counted:
    """Return the noisy counts of a window with n records."""
    return Counted(FEATURES, draw_counts(density, n, scale, window, window), scale)


def run(changed: np.ndarray, n_windows: int, *, scale: float = 10.0) -> list[Step]:
    """Return the steps of a series with another density from window 5 on."""
    numbers, memory, earlier = count(), Memory(), None
    windows: dict[int, Counted] = {}
    steps: list[Step] = []
    for index in range(n_windows):
        windows[index] = observe(QUIET if index < 5 else changed, index, scale=scale)
        params = DensityMap(epsilon=0.1, cells=CELLS)
        step = follow(params, windows, index, memory, earlier, lambda prefix: f"{prefix}_{next(numbers)}")
        memory, earlier = step.memory, step.map
        steps.append(step)
    return steps


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_channels_have_the_stated_variance(scale: float) -> None:
    """The noise of the sum, by which counts are divided, is a part: without it the ratio is up to 2 at this noise."""
    readings = [read_channels(observe(QUIET, window, scale=scale)) for window in range(200)]
    values = np.array([each.values for each in readings])
    ratio = values.var(axis=0) / variances(readings)[-1]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.1)
    assert ratio.max() < 1.6


def test_the_noise_of_the_sum_counts() -> None:
    reading = read_channels(observe(QUIET, 0, scale=30.0))
    with_sum = variances([reading])
    assert (reading.drift > 0) & (with_sum > (reading.noise + reading.squares - reading.values**2) / N * 0.9).all()
    assert (with_sum / (reading.noise / N)).max() > 1.3


def test_a_pool_has_the_variance_of_its_weighted_sum() -> None:
    windows = [observe(QUIET, window) for window in range(3)]
    pooled = windows[2].pooled(windows[:2], [1.0, 0.81, 0.9])
    weights = np.array([0.81, 0.9, 1.0])
    assert pooled.n_reports == pytest.approx(N * weights.sum() ** 2 / (weights**2).sum(), rel=0.05)
    factor = weights.sum() / (weights**2).sum()
    assert noise_variance(pooled.scale) == pytest.approx(
        factor**2 * (weights**2).sum() * noise_variance(10.0), rel=0.02
    )
    with pytest.raises(UnfitRound, match="same grid"):
        windows[0].pooled([Counted(FEATURES, np.zeros((4, 4), dtype=np.int64), 1.0)], None)


def test_a_scale_follows_from_its_variance() -> None:
    assert [scale_of(noise_variance(scale)) for scale in (0.3, 1.0, 50.0)] == pytest.approx([0.3, 1.0, 50.0])
    assert scale_of(0.0) == 0.0


def test_shares_of_a_window_are_unbiased_with_the_stated_error() -> None:
    labels = (np.indices((CELLS, CELLS))[0] >= CELLS // 2).astype(np.int64)
    wrong = blobs((0.5, 0.25, 0.5), (0.5, 0.75, 0.5))
    found = [window_shares(observe(QUIET, window, scale=30.0), labels, wrong) for window in range(80)]
    shares, errors = (np.array(each) for each in zip(*found, strict=True))
    assert abs(shares[:, 0].mean() - 0.6) < 4 * errors[:, 0].mean() / np.sqrt(80)
    assert 0.75 < shares[:, 0].std() / errors[:, 0].mean() < 1.25


class TestASeries:
    def test_quiet_windows_keep_their_clusters_and_raise_no_alarm(self) -> None:
        steps = run(QUIET, 8)
        assert {step.map.ids for step in steps} == {steps[0].map.ids}
        assert len(steps[0].map.ids) == 2
        assert [step.event for step in steps] == [None] * 8

    def test_a_gain_is_found_and_described(self) -> None:
        steps = run(blobs((0.7, 0.25, 0.5), (0.3, 0.75, 0.5)), 9)
        (event,) = [step.event for step in steps if step.event is not None]
        assert event.window in {5, 6}
        assert event.change == 5
        (described,) = [step for step in steps if step.described is not None]
        assert [each.kind for each in described.kinds] in (["grown"], ["shrunk"])
        assert abs(described.kinds[0].size) == pytest.approx(0.1, abs=0.02)

    def test_an_empty_window_is_followed(self) -> None:
        numbers = count()
        nothing = {0: observe(QUIET, 0, n=0)}
        params = DensityMap(epsilon=0.1, cells=CELLS)
        step = follow(params, nothing, 0, Memory(), None, lambda prefix: f"{prefix}_{next(numbers)}")
        assert len(step.map.ids) >= 1
