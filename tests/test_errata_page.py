"""docs/errata.md: every line has a reason and names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errata.md"
FOLDER = ROOT / "tests" / "clustering"

# Section of the page -> where its tests are, if the line names no file.
SECTIONS = {
    "AGCluster": FOLDER / "test_errata.py",
    "mnFCM": FOLDER / "test_errata_mnfcm.py",
    "DP bisecting": FOLDER / "central" / "test_errata_central.py",
    "Peers": FOLDER / "central" / "test_errata_peers.py",
}


def sections() -> dict[str, list[list[str]]]:
    """The lines of each section's table, cell by cell."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]
        found[section.splitlines()[0]] = cells
    return found


def names_of(path: Path) -> set[str]:
    """Names of tests: `TestX`, `TestX::test_y`, `test_y`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {node.name}
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return {name for name in names if "test_" in name or name.startswith("Test")}


def are_there(named: str, path: Path) -> bool:
    """Whether a file has a test of this name; a star at its end stands for the rest of it."""
    start = named.removesuffix("*")
    return any(name == named or (named.endswith("*") and name.startswith(start)) for name in names_of(path))


@pytest.mark.parametrize("title", SECTIONS)
class TestEveryLine:
    def lines(self, title: str) -> list[list[str]]:
        (cells,) = [cells for heading, cells in sections().items() if heading.startswith(title)]
        return cells

    def test_says_what_is_printed_what_is_wrong_what_is_done_and_what_holds_it(self, title: str) -> None:
        lines = self.lines(title)
        assert len(lines) >= 6
        assert [line for line in lines if len(line) != 4 or not all(line)] == []

    def test_names_tests_that_are_there(self, title: str) -> None:
        for line in self.lines(title):
            file = re.search(r" in `(test_\w+\.py)`$", line[3])
            path = next(FOLDER.rglob(file[1])) if file else SECTIONS[title]
            named = re.findall(r"`((?:Test|test_)[\w:]+\*?)`(?!\.py)", line[3].removesuffix(file[0] if file else ""))
            assert named, line
            kind = named[0].partition("::")[0]
            for name in named:
                whole = f"{kind}::{name}" if name.startswith("test_") else name
                assert are_there(whole, path), (whole, path.name)

    def test_is_counted_at_the_head_of_the_page(self, title: str) -> None:
        head = re.split(r"^## ", PAGE.read_text(), flags=re.M)[0]
        rows = [line.split("|")[1:-1] for line in head.splitlines() if line.startswith("| [")]
        counted = dict(zip(SECTIONS, [int(row[1]) for row in rows], strict=True))
        assert counted[title] == len(self.lines(title))


def test_every_section_is_known() -> None:
    assert len(sections()) == len(SECTIONS)
    assert all(any(heading.startswith(title) for title in SECTIONS) for heading in sections())


def test_a_name_that_is_not_there_is_found_out() -> None:
    path = SECTIONS["Peers"]
    assert are_there("TestDiffprivlib::test_a_record_*", path)
    assert not are_there("TestDiffprivlib::test_a_planet_*", path)
    assert not are_there("TestDiffprivlib::test_a_record_", path)
