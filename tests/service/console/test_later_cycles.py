"""The offer of a revision on the page of a series."""

import pytest

from service.console.pages.series import has_later_cycle


@pytest.mark.parametrize(
    ("states", "cycle", "expected"),
    [
        (["planned"], 4, True),
        (["planned", "done"], 4, False),
        (["planned", "missed"], 4, True),
        (["planned", "done"], 2, True),
        (["planned", "done", "done", "done"], 2, False),
        (["done", "done"], 1, False),
    ],
    ids=["planned", "begun", "missed", "a later one", "the last one", "all opened"],
)
def test_a_revision_is_offered_if_a_cycle_has_not_begun(states: list[str], cycle: int, expected: bool) -> None:
    newest = [
        {"state": state, "cycle": (len(states) - 1 - place) // cycle, "index": len(states) - 1 - place}
        for place, state in enumerate(states)
    ]
    series = {"state": "active", "cycle": cycle, "windows": {"count": 4}}
    assert has_later_cycle(series, newest) is expected
    assert not has_later_cycle(series | {"state": "ended"}, newest)
