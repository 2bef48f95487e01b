"""Series of windows: ids that persist, alarms, descriptions, and the shares of windows."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from clustering.density.excess_mass import BumpTree
from clustering.series.description import describe
from clustering.series.follow import Alarm, Memory, Step, begin_revision, follow, memory_from_wire
from clustering.series.identities import NamedMap, match_regions
from clustering.series.observed import Measured
from clustering.series.shares import window_shares
from sfumato.specs import ShiftedGrid
from tests.clustering.series.populations import CELLS, blobs, draw

EPSILON, N = 3.0, 20_000
PARAMS = ShiftedGrid(epsilon=EPSILON, cells=CELLS)
QUIET = blobs((0.5, 0.25, 0.3), (0.3, 0.75, 0.3), (0.2, 0.5, 0.75))


def run(
    densities: list[np.ndarray], seed: int = 1, missing: tuple[int, ...] = (), circles: tuple[int, ...] = ()
) -> list[Step]:
    """Follow windows of these densities. Memory passes through its wire form."""
    rng, numbers = np.random.default_rng(seed), count()
    memory, earlier = Memory(), None
    windows: dict[int, Measured] = {}
    steps = []
    for index, density in enumerate(densities):
        if index in missing:
            continue
        windows[index] = Measured(draw(density, EPSILON, N, rng, circles))
        step = follow(PARAMS, windows, index, memory, earlier, lambda prefix: f"{prefix}_{next(numbers)}")
        memory, earlier = memory_from_wire(step.memory.to_wire()), step.map
        steps.append(step)
    return steps


def test_quiet_windows_keep_their_ids_and_raise_no_alarm() -> None:
    steps = run([QUIET] * 8, missing=(3,))
    assert len(steps[0].map.ids) == 3
    assert all(step.map.ids == steps[0].map.ids or set(step.map.ids) == set(steps[0].map.ids) for step in steps)
    assert [step.event for step in steps] == [None] * 7
    assert list(steps[-1].weights) == [0, 1, 2, 4, 5, 6, 7]
    assert not steps[-1].is_provisional


def test_a_revision_starts_the_test_again_and_keeps_ids() -> None:
    """The same change as the revision raises no alarm: nothing before it is compared."""
    rng, numbers = np.random.default_rng(3), count()
    new_id = lambda prefix: f"{prefix}_{next(numbers)}"  # noqa: E731 - a counter
    memory, earlier = Memory(), None
    windows: dict[int, Measured] = {}
    changed = blobs((0.3, 0.25, 0.3), (0.3, 0.75, 0.3), (0.4, 0.5, 0.75))
    maps = []
    for index in range(8):
        windows[index] = Measured(draw(QUIET if index < 4 else changed, EPSILON, N, rng))
        if index == 4:
            assert earlier is not None
            memory = replace(memory, alarm=Alarm("evt_x", 3, 3))
            memory, earlier = begin_revision(windows, index, 4, memory, earlier)
            assert (memory.pool_from, memory.baseline_from, memory.test_from, memory.alarm) == (0, 4, 4, None)
        step = follow(PARAMS, windows, index, memory, earlier, new_id)
        memory, earlier = step.memory, step.map
        assert step.event is None
        maps.append(step.map)
    assert set(maps[-1].ids) == set(maps[0].ids)


def test_a_map_moves_to_another_grid_with_its_ids() -> None:
    labels = np.repeat(np.repeat([[0, 1], [2, 1]], 4, axis=0), 4, axis=1)
    moved = NamedMap(labels, ("a", "b", "c")).on_grid(12)
    assert moved.ids == ("a", "b", "c")
    assert moved.labels.shape == (12, 12)
    assert (moved.labels[0, 0], moved.labels[0, -1], moved.labels[-1, 0]) == (0, 1, 2)
    assert np.bincount(moved.labels.ravel()).tolist() == [36, 72, 36]


def test_a_move_over_the_seam_of_a_circle_is_a_move() -> None:
    after = blobs((0.5, 0.25, 0.3), (0.3, 0.75, 0.3), (0.2, 0.62, 0.82))
    before, later = (np.roll(each, 7, axis=1) for each in (QUIET, after))  # 0.75 becomes 0.97, and 0.82 becomes 0.04
    steps = run([before] * 5 + [later] * 5, circles=(1,))
    (described,) = [step for step in steps if step.described is not None]
    assert [each.kind for each in described.kinds] == ["moved"]
    assert set(steps[-1].map.ids) == set(steps[0].map.ids)


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (blobs((0.3, 0.25, 0.3), (0.3, 0.75, 0.3), (0.4, 0.5, 0.75)), "grown"),
        (blobs((0.6, 0.25, 0.3), (0.4, 0.75, 0.3)), "gone"),
        (blobs((0.4, 0.25, 0.3), (0.25, 0.75, 0.3), (0.15, 0.5, 0.75), (0.2, 0.85, 0.85)), "born"),
        (blobs((0.5, 0.25, 0.3), (0.3, 0.75, 0.3), (0.2, 0.62, 0.82)), "moved"),
    ],
)
def test_a_change_is_an_event_and_is_described_two_windows_later(after: np.ndarray, kind: str) -> None:
    steps = run([QUIET] * 5 + [after] * 5)
    (alarm,) = [step for step in steps if step.event is not None]
    event = alarm.event
    assert event is not None
    assert event.window - 5 in (0, 1)
    assert event.change == 5
    (described,) = [step for step in steps if step.described is not None]
    assert described is steps[max(event.window + 2, 7)]
    assert described.described is not None
    assert described.described[0] == event.id
    first = described.kinds[0]
    assert first.kind == kind
    assert first.error < abs(first.size)
    before, later = set(steps[4].map.ids), set(steps[-1].map.ids)
    lost = {"gone": 1}.get(kind, 0)
    assert len(before - later) == lost
    assert len(later - before) == {"born": 1}.get(kind, 0)
    if kind == "gone":
        assert min(described.weights) == 5  # the windows before show another map
    assert steps[-1].memory.test_from == event.window + 1


def test_a_new_horizon_keeps_a_baseline() -> None:
    memory = Memory(test_from=0)
    rng = np.random.default_rng(4)
    windows = {index: Measured(draw(QUIET, EPSILON, 2000, rng)) for index in range(40, 53)}
    step = follow(PARAMS, windows, 52, memory, None, lambda prefix: f"{prefix}_0")
    assert (step.memory.baseline_from, step.memory.test_from) == (26, 52)


def test_a_given_number_of_clusters_is_kept() -> None:
    rng = np.random.default_rng(5)
    windows = {0: Measured(draw(QUIET, EPSILON, N, rng))}
    numbers = count()
    params = ShiftedGrid(epsilon=EPSILON, cells=CELLS, clusters=2)
    step = follow(params, windows, 0, Memory(), None, lambda prefix: f"{prefix}_{next(numbers)}")
    assert len(step.map.ids) == 2


def test_a_split_names_its_parts() -> None:
    rng = np.random.default_rng(6)
    before = blobs((0.6, 0.5, 0.3), (0.4, 0.5, 0.8))
    after = blobs((0.3, 0.3, 0.3), (0.3, 0.7, 0.3), (0.4, 0.5, 0.8))
    numbers = count(10)
    labels = (np.indices((32, 32))[1] >= 18).astype(np.int64)
    windows = [[Measured(draw(density, EPSILON, N, rng)) for _ in range(3)] for density in (before, after)]
    earlier = NamedMap(labels, ("a", "b"))
    found = describe(*windows, earlier, earlier, before, None, lambda: f"new{next(numbers)}")
    split = next(each for each in found.kinds if each.kind == "split")
    assert split.cluster == "a"
    assert set(split.others) <= set(found.map.ids)
    assert split.others
    assert found.parents == dict.fromkeys(found.parents, "a")


def test_a_cluster_that_got_its_id_after_the_change_is_born_with_this_id() -> None:
    """The last map knows it already. The windows before the change do not show it, so it has not grown."""
    rng = np.random.default_rng(8)
    after = blobs((0.45, 0.25, 0.3), (0.27, 0.75, 0.3), (0.18, 0.5, 0.75), (0.1, 0.85, 0.85))
    windows = {t: Measured(draw(QUIET if t < 4 else after, EPSILON, N, rng)) for t in range(7)}
    tree = BumpTree(after)
    names = NamedMap(tree.regions(tree.bumps()[:4]).labels, ("a", "b", "c", "d"))
    young = names.ids[int(names.labels[27, 27])]
    memory = Memory(baseline_from=5, test_from=5, alarm=Alarm("evt_x", 4, 4))
    step = follow(PARAMS, windows, 6, memory, names, lambda prefix: f"{prefix}_new")
    assert [(each.kind, each.cluster) for each in step.kinds] == [("born", young)]
    assert set(step.map.ids) == set(names.ids)
    assert step.parents == {}


def test_a_cluster_that_was_too_small_for_the_map_before_has_grown() -> None:
    """Its place had 40 % of its share before. So it is not born, and no part of an older cluster."""
    rng = np.random.default_rng(9)
    before = blobs((0.54, 0.25, 0.3), (0.38, 0.75, 0.3), (0.08, 0.5, 0.75))
    after = blobs((0.47, 0.25, 0.3), (0.33, 0.75, 0.3), (0.2, 0.5, 0.75))
    tree, numbers = BumpTree(before), count(10)
    earlier = NamedMap(tree.regions(tree.bumps()[:2]).labels, ("a", "b"))
    windows = [[Measured(draw(density, EPSILON, N, rng)) for _ in range(3)] for density in (before, after)]
    found = describe(*windows, earlier, earlier, before, None, lambda: f"new{next(numbers)}")
    first = found.kinds[0]
    assert (first.kind, first.cluster) == ("grown", "new10")
    assert abs(first.size - 0.12) < 3 * first.error
    assert set(found.parents) == {"new10"}


def test_matched_regions_are_those_that_overlap_most() -> None:
    one = np.array([[0, 0, 1, 1]])
    assert match_regions(one, np.array([[1, 1, 0, 0]]), np.full((1, 4), 0.25)) == [(0, 1), (1, 0)]
    assert match_regions(one, np.array([[0, 1, 2, 3]]), np.array([[0.45, 0.05, 0.45, 0.05]])) == [(0, 0), (1, 2)]


def test_shares_of_a_window_are_unbiased_with_the_stated_error() -> None:
    """The pooled density is wrong by 10 points, and the shares of 60 windows are right within 5 standard errors."""
    rng = np.random.default_rng(7)
    truth, pooled = blobs((0.7, 0.25, 0.5), (0.3, 0.75, 0.5)), blobs((0.6, 0.25, 0.5), (0.4, 0.75, 0.5))
    labels = (np.indices((32, 32))[0] >= 16).astype(np.int64)
    found = [window_shares(Measured(draw(truth, 1.0, 10_000, rng)), labels, pooled) for _ in range(60)]
    shares, errors = (np.array(each) for each in zip(*found, strict=True))
    assert shares.sum(axis=1) == pytest.approx(np.ones(60), abs=0.02)
    assert abs(shares[:, 0].mean() - 0.7) < 5 * errors[:, 0].mean() / np.sqrt(60)
    assert 0.6 < shares[:, 0].std() / errors[:, 0].mean() < 1.4
