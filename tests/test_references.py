"""Every source has its entry in docs/references.md, and the tree names no document outside of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("audit", "benchmarks", "clustering", "docs", "models", "sdk/python", "service", "tests", "workers")
CITATION = re.compile(
    r"((?:[A-Z][\w-]+, )*[A-Z][\w-]+(?: and [A-Z][\w-]+| et al\.)) (?=\(?(?:19|20)\d\d\b)\(?((?:19|20)\d\d)"
)
OUTSIDE = re.compile(r"\bSTATIST" + r"ICS\b|\bpapers? 00\d")


def pages() -> list[Path]:
    return sorted(
        path
        for folder in FOLDERS
        for kind in ("*.py", "*.md")
        for path in (ROOT / folder).rglob(kind)
        if "node_modules" not in path.parts
    )


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in pages()}


def test_no_text_names_a_document_outside_of_the_tree(texts: dict[str, str]) -> None:
    assert [name for name, text in texts.items() if OUTSIDE.search(text)] == []


def test_every_cited_source_has_an_entry(texts: dict[str, str]) -> None:
    entries = texts["docs/references.md"].splitlines()
    missing = {
        (name, f"{authors} {year}")
        for name, text in texts.items()
        if not name.startswith("docs/references") and not name.startswith("tests/")
        for authors, year in CITATION.findall(" ".join(text.replace("#", " ").split()))
        if not any(re.split(r",| and | et al", authors)[0] in entry and year in entry for entry in entries)
    }
    assert missing == set()
