"""docs/privacy.md is held to the tests it names and to the figures of the code."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.accounting import NANO

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "privacy.md"
FILES = sorted((ROOT / "tests" / "service").glob("test_side_channels*.py"))


class TestTheRows:
    """docs/privacy.md, section "Side channels", and the table of poisoning."""

    def rows(self, title: str) -> list[list[str]]:
        section = re.split(rf"^#+ {title}$", PAGE.read_text(), flags=re.M)[1]
        section = re.split(r"^## |^### What ", section, flags=re.M)[0]
        lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
        heads = [i for i, line in enumerate(lines) if line.startswith(("| channel", "| mechanism"))]
        return [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for i, line in enumerate(lines)
            if i not in heads
        ]

    def test_have_each_a_test_that_is_there(self) -> None:
        rows = self.rows("Side channels")
        assert len(rows) >= 40
        for row in rows:
            assert len(row) == 6, row
            assert all(row), row
            assert re.match(r"(removed|bucketed|paid for|public|stated)\b", row[4]), row
            named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", row[5])
            assert named, row
            for file, test in named:
                assert exists(ROOT / "tests" / file, test), f"{row[0]}: {file}::{test}"

    def test_name_every_test_of_a_channel(self) -> None:
        for path in FILES:
            told = re.findall(rf"`service/{path.name}`?::`?([\w:]+)`", PAGE.read_text())
            tests = {
                f"{node.name}::{test.name}"
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ClassDef)
                for test in node.body
                if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
            }
            assert len(tests) > 5
            assert [test for test in tests if not {test, test.partition("::")[0]} & set(told)] == []

    def test_of_poisoning_are_what_the_code_says(self) -> None:
        rows = self.rows("What a liar can do")
        assert len(rows) == len(AMPLIFICATIONS)
        for (name, of), row in zip(AMPLIFICATIONS.items(), rows, strict=True):
            assert row[0].startswith(f"`{name}`"), row
            for epsilon, cell in zip((0.5, 1, 2, 4), row[1:5], strict=True):
                figure = of(epsilon)
                assert cell == (f"{figure:.0f}" if figure >= 20 else f"{figure:.1f}"), (name, epsilon)


def exists(path: Path, name: str) -> bool:
    """Whether a file holds a test, or a class of tests, of this name: `TestX`, `TestX::test_y` or `test_y`."""
    if not path.is_file():
        return False
    holder: Any = ast.parse(path.read_text())
    for part in name.split("::"):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = [node for node in holder.body if isinstance(node, kinds) and node.name == part]
        if not found:
            return False
        holder = found[0]
    return True


def swing(kind: str) -> Callable[[float], float]:
    """1/(p - q): how far one report can move an estimated share, over how far an exact one would."""

    def of(epsilon: float) -> float:
        p, q = mechanisms.support(mechanisms.design(kind, 64, round(epsilon * NANO)))
        return float(1 / (p - q))

    return of


def of_window(epsilon: float) -> float:
    """1/|c_1|: the same of a value of the characteristic function."""
    chances = mechanisms.offset_chances(mechanisms.design("window", 16, round(epsilon * NANO)))
    angles = 2j * np.pi * np.arange(16) / 16
    return float(1 / abs(np.array([float(chance) for chance in chances]) @ np.exp(angles)))


def of_noise(epsilon: float) -> float:
    """The range of what is sent of a feature, over the feature's own; two features."""
    made = mechanisms.discrete_laplace.design(2, 1 << 16, round(epsilon * NANO))
    return (made.steps + 2 * made.margin) / made.steps


AMPLIFICATIONS: dict[str, Callable[[float], float]] = {
    **{kind: swing(kind) for kind in ("grr", "ss", "oue", "olh", "hr")},
    "window": of_window,
    "discrete_laplace": of_noise,
}


def test_the_estimates_are_moved_as_far_as_the_table_says() -> None:
    """Not only a formula: n honest reports and one that lies, decoded by what decodes them in the service."""
    from clustering.decoders import decoder
    from clustering.plan import Tally

    for kind in ("grr", "ss", "oue", "olh"):
        mechanism = mechanisms.design(kind, 64, NANO)
        counts = np.full((1, 64), 300, dtype=np.int64)
        moved = counts.copy()
        moved[0, 5] += 1
        reports = np.array([1000], dtype=np.int64)
        shares = [decoder(mechanism).candidate_frequencies(Tally(each, reports))[0, 5] for each in (counts, moved)]
        assert 1000 * (shares[1] - shares[0]) == pytest.approx(AMPLIFICATIONS[kind](1))
