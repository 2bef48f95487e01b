"""docs/privacy.md names existing tests and has the figures of the code."""

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.privacy.accounting import NANO

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "privacy.md"
FILES = sorted((ROOT / "tests" / "service").glob("test_side_channels*.py"))


class TestRows:
    """The tables "Side channels" and "Dishonest devices" of docs/privacy.md."""

    def rows(self, title: str) -> list[list[str]]:
        section = re.split(rf"^#+ {title}$", PAGE.read_text(), flags=re.M)[1]
        section = re.split(r"^## |^### Duration ", section, flags=re.M)[0]
        lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
        heads = [i for i, line in enumerate(lines) if line.startswith(("| channel", "| mechanism"))]
        return [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for i, line in enumerate(lines)
            if i not in heads
        ]

    def test_every_row_names_an_existing_test(self) -> None:
        rows = self.rows("Side channels")
        assert len(rows) >= 40
        for row in rows:
            assert len(row) == 6, row
            assert all(row), row
            assert re.match(r"(removed|bucketed|charged|public|residual)\b", row[4]), row
            names = re.findall(r"`([\w/]+\.py)::([\w:]+)`", row[5])
            assert names, row
            for file, test in names:
                assert has_test(ROOT / "tests" / file, test), f"{row[0]}: {file}::{test}"

    def test_every_test_of_a_channel_is_named(self) -> None:
        for path in FILES:
            listed = re.findall(rf"`service/{path.name}`?::`?([\w:]+)`", PAGE.read_text())
            tests = {
                f"{node.name}::{test.name}"
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ClassDef)
                for test in node.body
                if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test")
            }
            assert len(tests) > 3
            assert [test for test in tests if not {test, test.partition("::")[0]} & set(listed)] == []

    def test_amplifications_equal_those_of_the_code(self) -> None:
        rows = [row for row in self.rows("Dishonest devices") if len(row) == 6]  # the other table counts rounds
        assert len(rows) == len(AMPLIFICATIONS)
        for (name, amplification), row in zip(AMPLIFICATIONS.items(), rows, strict=True):
            assert row[0].startswith(f"`{name}`"), row
            for epsilon, cell in zip((0.5, 1, 2, 4), row[1:5], strict=True):
                figure = amplification(epsilon)
                assert cell == (f"{figure:.0f}" if figure >= 20 else f"{figure:.1f}"), (name, epsilon)


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def has_test(path: Path, name: str) -> bool:
    """Return whether a file has a test or test class with this name: `TestX`, `TestX::test_y` or `test_y`."""
    if not path.is_file():
        return False
    parent: Any = parse_file(path)
    for part in name.split("::"):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        matches = [node for node in parent.body if isinstance(node, kinds) and node.name == part]
        if not matches:
            return False
        parent = matches[0]
    return True


def make_amplification(kind: str) -> Callable[[float], float]:
    """Return the amplification 1/(p - q): the effect of a report on an estimated share, relative to an exact one."""

    def amplification(epsilon: float) -> float:
        p, q = mechanisms.design(kind, 64, round(epsilon * NANO)).support()
        return float(1 / (p - q))

    return amplification


def window_amplification(epsilon: float) -> float:
    """Return 1/|c_1|, the amplification for a value of the characteristic function."""
    probabilities = mechanisms.design("window", 16, round(epsilon * NANO)).offset_chances()
    angles = 2j * np.pi * np.arange(16) / 16
    return float(1 / abs(np.array([float(probability) for probability in probabilities]) @ np.exp(angles)))


def noise_amplification(epsilon: float) -> float:
    """Return the range of a reported feature relative to the range of the feature, for two features."""
    mechanism = mechanisms.DiscreteLaplaceMechanism.design(2, 1 << 16, round(epsilon * NANO))
    return (mechanism.steps + 2 * mechanism.margin) / mechanism.steps


AMPLIFICATIONS: dict[str, Callable[[float], float]] = {
    **{kind: make_amplification(kind) for kind in ("grr", "ss", "oue", "olh", "hr")},
    "window": window_amplification,
    "discrete_laplace": noise_amplification,
}


def test_one_dishonest_report_changes_an_estimate_by_its_amplification() -> None:
    """Decode n honest reports and a dishonest one with the service's decoder."""
    from clustering.rounds.decoders import decoder
    from clustering.rounds.tally import Tally

    for kind in ("grr", "ss", "oue", "olh"):
        mechanism = mechanisms.design(kind, 64, NANO)
        counts = np.full((1, 64), 300, dtype=np.int64)
        changed = counts.copy()
        changed[0, 5] += 1
        reports = np.array([1000], dtype=np.int64)
        shares = [decoder(mechanism).candidate_frequencies(Tally(each, reports))[0, 5] for each in (counts, changed)]
        assert 1000 * (shares[1] - shares[0]) == pytest.approx(AMPLIFICATIONS[kind](1))
