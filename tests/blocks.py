"""The code blocks of the docs: their place, their language, and whether the tests run them.

A block is run unless a comment stands right before it:

    <!-- not run: needs Docker -->                     no test runs it, but it must parse
    <!-- run by: tests/models/test_backup.py -->       another test runs it in its own directory
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]

SHELL = ("sh", "bash")
SCRIPTS = ("js", "ts", "typescript", "javascript")
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "sdk").glob("*/README.md")),
)

_MARK = re.compile(r"^<!-- (not run|run by): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A block of code; `line` is the line of the page, from 1, on which its text begins."""

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
        """Whether the tests run the block."""
        return not (self.not_run or self.run_by)


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page, in order. An indented block has no language."""
    return tuple(found_in(page, (ROOT / page).read_text()))


def found_in(page: str, text: str) -> Iterator[Block]:
    """Return the blocks of a text."""
    mark: re.Match[str] | None = None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            given = {mark[1].replace(" ", "_"): mark[2]} if mark else {}
            yield Block(page, token.map[0] + (2 if token.type == "fence" else 1), token.info, token.content, **given)
        mark = _MARK.match(token.content.strip()) if token.type == "html_block" else None
