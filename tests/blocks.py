"""The code blocks of the documents: where they stand, in which language, and whether the tests run them.

A block is run unless a comment stands right before it:

    <!-- not run: needs Docker -->                     nobody runs it here; it must parse all the same
    <!-- run by: tests/models/test_backup.py -->       another test does, in a place of its own
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]

SHELL = ("sh", "bash", "console")
SCRIPTS = ("js", "ts", "typescript", "javascript")
PAGES = (
    "README.md",
    "CHANGELOG.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "sdk").glob("*/README.md")),
)

_MARK = re.compile(r"^<!-- (not run|run by): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One block of code; `line` is that of the page, from 1, on which its text begins."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""
    run_by: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the tests of the documents run it."""
        return not (self.not_run or self.run_by)


def blocks_of(page: str) -> list[Block]:
    """Every block of a page, in order; one that is indented has no language."""
    return list(found_in(page, (ROOT / page).read_text()))


def found_in(page: str, text: str) -> Iterator[Block]:
    """The blocks of a text."""
    mark: re.Match[str] | None = None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            given = {mark[1].replace(" ", "_"): mark[2]} if mark else {}
            yield Block(page, token.map[0] + (2 if token.type == "fence" else 1), token.info, token.content, **given)
        mark = _MARK.match(token.content.strip()) if token.type == "html_block" else None
