"""Numbers in texts are found if they are separate words."""

import pytest

from tests.texts import numbers_in


class TestNumbersInAText:
    @pytest.mark.parametrize(
        "text",
        [
            '{"n":3456,"m":1}',
            "{'n': 3456}",
            "of 3456 records.",
            "n=3456;",
            "(3456)",
            "3456",
            "-3456",
            '"3456"',
            "3456.",
        ],
    )
    def test_are_separate_words(self, text: str) -> None:
        assert 3456 in numbers_in(text)

    @pytest.mark.parametrize(
        "text",
        ["job_01k3456z", "2026-11-22T10:11:12.345678Z", "1795340345600001", "0.3456", "a3456", "9f3456c1", "3456.25"],
    )
    def test_are_no_parts_of_other_words(self, text: str) -> None:
        assert 3456 not in numbers_in(text)
