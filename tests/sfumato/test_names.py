"""Names that a caller chooses among known ones."""

import pytest

from sfumato.errors import InvalidSpec
from sfumato.names import find_positions, list_texts, nearest

KNOWN = ("east", "north", "Income")


def test_positions_are_ascending_in_any_order_of_the_names() -> None:
    assert find_positions(["Income", "east"], KNOWN, "feature") == (0, 2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["incom"], "there is no feature 'incom': use 'Income'"),
        (["east", "nort"], "use 'north'"),
        (["east", "east"], "'east' is named twice: name it once"),
        ([], "name at least one feature"),
    ],
)
def test_a_wrong_list_is_refused_with_the_remedy(names: list[str], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        find_positions(names, KNOWN, "feature")


def test_the_nearest_name_ignores_case() -> None:
    assert nearest("INCOME", KNOWN) == "Income"
    assert nearest("x", ()) is None


@pytest.mark.parametrize("given", ["east", ["east", 1]])
def test_a_single_text_and_other_values_are_no_list_of_names(given: object) -> None:
    with pytest.raises(InvalidSpec, match="features must be a list of names"):
        list_texts(given, "features")  # type: ignore[arg-type]
