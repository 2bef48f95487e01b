"""Every line of docs/errata.md has a reason and names existing tests."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errata.md"
FOLDER = ROOT / "tests" / "clustering"

# Test file per section, for lines that name no file.
SECTIONS = {
    "AGCluster": FOLDER / "grids" / "test_errata.py",
    "mnFCM": FOLDER / "centroids" / "test_errata_mnfcm.py",
    "DP bisecting": FOLDER / "central" / "test_errata_central.py",
    "Peers": FOLDER / "central" / "test_errata_peers.py",
}


def read_sections() -> dict[str, list[list[str]]]:
    """Return the table of each section as lists of cells."""
    result = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]
        result[section.splitlines()[0]] = cells
    return result


def list_tests(path: Path) -> set[str]:
    """Return the names of tests: `TestX`, `TestX::test_y`, `test_y`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {node.name}
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return {name for name in names if "test_" in name or name.startswith("Test")}


def has_test(name: str, path: Path) -> bool:
    """Return whether a file has a test with this name. A star at the end matches any rest."""
    start = name.removesuffix("*")
    return any(test == name or (name.endswith("*") and test.startswith(start)) for test in list_tests(path))


@pytest.mark.parametrize("title", SECTIONS)
class TestLines:
    def lines(self, title: str) -> list[list[str]]:
        (cells,) = [cells for heading, cells in read_sections().items() if heading.startswith(title)]
        return cells

    def test_every_line_has_four_cells(self, title: str) -> None:
        lines = self.lines(title)
        assert len(lines) >= 6
        assert [line for line in lines if len(line) != 4 or not all(line)] == []

    def test_named_tests_exist(self, title: str) -> None:
        for line in self.lines(title):
            file = re.search(r" in `(test_\w+\.py)`$", line[3])
            path = next(FOLDER.rglob(file[1])) if file else SECTIONS[title]
            names = re.findall(r"`((?:Test|test_)[\w:]+\*?)`(?!\.py)", line[3].removesuffix(file[0] if file else ""))
            assert names, line
            kind = names[0].partition("::")[0]
            for name in names:
                full_name = f"{kind}::{name}" if name.startswith("test_") else name
                assert has_test(full_name, path), (full_name, path.name)

    def test_the_head_of_the_page_counts_the_lines(self, title: str) -> None:
        head = re.split(r"^## ", PAGE.read_text(), flags=re.M)[0]
        rows = [line.split("|")[1:-1] for line in head.splitlines() if line.startswith("| [")]
        counted = dict(zip(SECTIONS, [int(row[1]) for row in rows], strict=True))
        assert counted[title] == len(self.lines(title))


def test_every_section_is_known() -> None:
    assert len(read_sections()) == len(SECTIONS)
    assert all(any(heading.startswith(title) for title in SECTIONS) for heading in read_sections())


def test_an_unknown_name_is_detected() -> None:
    path = SECTIONS["Peers"]
    assert has_test("TestDiffprivlib::test_a_record_*", path)
    assert not has_test("TestDiffprivlib::test_a_planet_*", path)
    assert not has_test("TestDiffprivlib::test_a_record_", path)
