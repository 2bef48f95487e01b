"""Texts that mean a missing value: those of pandas, R, databases and spreadsheets, in any case, and nothing else."""

import pytest
from pandas._libs.parsers import STR_NA_VALUES

from sfumato.api.records import to_user_ids
from sfumato.errors import InvalidSpec
from sfumato.specs.missing import is_missing_text

R = ("NA", "NaN", "<NA>", "NULL", "NA_integer_", "NA_real_", "NA_character_")
DATABASES = (
    r"\N",
    "NULL",
    "(null)",
    "[NULL]",
    "<null>",
    "{null}",
    "nil",
    "<nil>",
    "None",
    "undefined",
    "missing",
    "nothing",
)
SPREADSHEETS = ("#N/A", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#SPILL!", "(blank)", "(empty)")
PLATFORMS = ("1.#IND", "-1.#IND00", "1.#QNAN0", "nan(ind)", "-nan(snan)", "NaT", str(-(2**63)), str(-(2**31)))
OTHERS = ("(not set)", "not available", ".", "?", "--", "\N{EM DASH}", "00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("text", sorted({*STR_NA_VALUES, *R, *DATABASES, *SPREADSHEETS, *PLATFORMS, *OTHERS}))
def test_a_marker_of_a_missing_value_is_one(text: str) -> None:
    for variant in (text, text.upper(), text.lower(), f"  {text}\t", f"\u00a0{text}"):
        assert is_missing_text(variant)
        with pytest.raises(InvalidSpec, match=r"record 2 .* has no user"):
            to_user_ids(["anna", variant])


@pytest.mark.parametrize(
    "text", ["anna", "nancy", "n", "0", "-1", "7", "#alice", "(nora)", "nan7", "na/n", "[]", "()", "none@x.org"]
)
def test_another_text_is_none(text: str) -> None:
    assert not is_missing_text(text)
    assert to_user_ids([text]) == [text]
