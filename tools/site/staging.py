"""Gathers the pages: what is written in docs/ and beside the packages, with links that fit the site."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

# Files of the repository that are not pages and that the site holds, by where it holds them.
FILES = {
    "openapi/openapi.json": "api/openapi.json",
    **{f"openapi/vectors/{name}.json": f"vectors/{name}.json" for name in ("caps", "devices", "refusals", "reports")},
}

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_COMMENT = re.compile(r"^<!-- .* -->$")  # for programs that read the page, not for people


class BrokenLink(Exception):
    """A page leads to something that is not there."""


def pages(root: Path = ROOT) -> dict[str, str]:
    """Every page that is written by hand: its path in the repository, and on the site."""
    found = {}
    for path in sorted((root / "docs").rglob("*.md")):
        place = path.relative_to(root / "docs").as_posix()
        found[f"docs/{place}"] = re.sub(r"README\.md$", "index.md", place)
    for path in sorted((root / "sdk").glob("*/README.md")):
        found[path.relative_to(root).as_posix()] = f"sdk/{path.parent.name}.md"
    return found | {"CHANGELOG.md": "changelog.md"}


def stage(target: Path, made: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Write every page and picture below `target`.

    Parameters
    ----------
    made : mapping of str to str
        Pages that are made from the code: path on the site, Markdown.

    Returns
    -------
    list of str
        The pages' paths on the site.

    Raises
    ------
    BrokenLink
        With all that lead nowhere.
    """
    written = pages(root)
    broken: list[str] = []
    shutil.rmtree(target, ignore_errors=True)
    for source, place in written.items():
        text = (root / source).read_text()
        _write(target / place, "".join(_relinked(text, source, place, written | FILES, root, broken.append)))
    for place, text in made.items():
        _write(target / place, text)
    for source, place in FILES.items():
        _write(target / place, (root / source).read_text())
    shutil.copytree(root / "docs" / "images", target / "images")
    if broken:
        raise BrokenLink("\n".join(broken))
    return [*written.values(), *made]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _relinked(
    text: str, source: str, place: str, known: Mapping[str, str], root: Path, complain: Callable[[str], None]
) -> Iterator[str]:
    """The lines of a page, with its links as the site has them; code stays as it is."""

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if "://" in target or not target:
            return found[0]
        named = os.path.normpath(PurePosixPath(source).parent / target)
        if named.startswith("docs/images/") and (root / named).is_file():
            known_as = named.removeprefix("docs/")
        elif named in known:
            known_as = known[named]
        elif (root / named).exists() and not found["image"]:
            return found["text"]  # in the repository, and not on the site
        else:
            complain(f"{source}: {found['target']}")
            return found[0]
        shown = os.path.relpath(known_as, PurePosixPath(place).parent)
        return f"{found['image']}[{found['text']}]({shown}{'#' if anchor else ''}{anchor})"

    fence = ""
    for line in text.splitlines(keepends=True):
        marks = _FENCE.match(line)
        if marks and (not fence or line.startswith(fence)):
            fence = "" if fence else marks[1]
        if fence or marks:
            yield line
        else:
            yield "\n" if _COMMENT.match(line.rstrip()) else _LINK.sub(link, line)
