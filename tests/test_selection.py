"""Selection of slow tests by `--slow-in`."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import pytest_collection_modifyitems


def item(nodeid: str, *, is_slow: bool = True) -> Any:
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: (is_slow and name == "slow") or None)


ITEMS = (
    item("tests/a/test_a.py::test_fast", is_slow=False),
    item("tests/a/test_a.py::test_slow"),
    item("tests/a/test_ab.py::test_slow"),
    item("tests/b/test_b.py::test_kinds[one]"),
    item("tests/b/test_b.py::test_kinds[two]"),
    item("tests/b/test_b.py::test_kinds_again"),
)


def select(*places: str) -> tuple[list[str], list[str]]:
    """Return the ids of the tests that run, in order, and of those that are deselected."""
    items, hook = list(ITEMS), Mock()
    pytest_collection_modifyitems(Mock(getoption=lambda _: list(places), hook=hook), items)
    deselected = [each.nodeid for call in hook.pytest_deselected.call_args_list for each in call.kwargs["items"]]
    return [each.nodeid for each in items], deselected


def test_nothing_changes_without_the_option() -> None:
    assert select() == ([each.nodeid for each in ITEMS], [])


@pytest.mark.parametrize(
    ("place", "numbers"),
    [
        ("tests/a", [1, 2]),
        ("tests/a/test_a.py", [1]),
        ("tests/b/test_b.py::test_kinds", [3, 4]),
        ("tests/b/test_b.py::test_kinds[two]", [4]),
    ],
)
def test_slow_tests_of_a_place_run_before_the_fast_ones(place: str, numbers: list[int]) -> None:
    selected, deselected = select(place)
    assert selected == [ITEMS[number].nodeid for number in [*numbers, 0]]
    assert sorted(selected + deselected) == sorted(each.nodeid for each in ITEMS)


def test_a_place_without_slow_tests_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"must name a slow test that exists: tests/c$"):
        select("tests/a", "tests/c")
