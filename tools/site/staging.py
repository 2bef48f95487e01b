"""Stage the pages of the site: copy docs/ and the READMEs of the SDKs, and adapt their links."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

# Files that the site contains besides pages: path in the repository, path on the site.
FILES = {
    "openapi/openapi.json": "api/openapi.json",
    **{f"openapi/vectors/{name}.json": f"vectors/{name}.json" for name in ("caps", "devices", "refusals", "reports")},
}

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_PAGE = re.compile(r'^<!-- page: (\S+\.md)(?: "(.+)")? -->$', flags=re.MULTILINE)
_COMMENT = re.compile(r"^<!-- .* -->$", flags=re.MULTILINE)  # markers for programs


class BrokenLink(Exception):
    """A page links to a missing target."""


def list_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the hand-written pages: path in the repository, path on the site."""
    found = {}
    for path in sorted((root / "docs").rglob("*.md")):
        place = path.relative_to(root / "docs").as_posix()
        found[f"docs/{place}"] = re.sub(r"README\.md$", "index.md", place)
    for path in sorted((root / "sdk").glob("*/README.md")):
        found[path.relative_to(root).as_posix()] = f"sdk/{path.parent.name}.md"
    return found | {"CHANGELOG.md": "changelog.md"}


def stage(target: Path, generated: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Write all pages and images below `target`.

    Parameters
    ----------
    generated : mapping of str to str
        Pages that are generated from the code: path on the site, Markdown.

    Returns
    -------
    list of str
        Paths of the pages on the site.

    Raises
    ------
    BrokenLink
        The message lists all broken links.
    """
    site = Site(root)
    broken: list[str] = []
    shutil.rmtree(target, ignore_errors=True)
    for part in site.parts:
        _write(target / part.place, "".join(_adapt_links(part, site, broken.append)))
    for place, text in generated.items():
        _write(target / place, text)
    for source, place in FILES.items():
        _write(target / place, (root / source).read_text())
    shutil.copytree(root / "docs" / "images", target / "images")
    if broken:
        raise BrokenLink("\n".join(broken))
    return [*(part.place for part in site.parts), *generated]


@dataclass(frozen=True)
class Part:
    """The text of one page of the site: a page of the repository, or sections of one."""

    source: str
    place: str
    text: str


class Site:
    """The hand-written pages of the site, and the place of each heading."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        pages = list_pages(root)
        self.parts = [
            part for source, place in pages.items() for part in divide(source, place, (root / source).read_text())
        ]
        self._places = {f"docs/{part.place}": part.place for part in self.parts} | pages | FILES
        self._anchors = {
            (part.source, make_anchor(title)): part.place
            for part in self.parts
            for title in re.findall(r"^#+ (.+)$", part.text, flags=re.MULTILINE)
        }

    def locate(self, source: str, anchor: str) -> str | None:
        """Return the page of the site with a heading of a page of the repository, or None for another file."""
        return self._anchors.get((source, anchor)) or self._places.get(source)


def divide(source: str, place: str, text: str) -> list[Part]:
    """Return the pages of the site for a page of the repository.

    A line `<!-- page: PATH -->` begins a page of its own on the site. The first heading becomes the title of the page,
    unless the line gives a title in quotes. A path that was named before continues its page.
    """
    folder = PurePosixPath(place).parent
    first, *rest = _PAGE.split(text)
    texts, excesses = {place: first}, {place: 0}
    for path, title, section in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        own = (folder / path).as_posix()
        if own not in texts:
            texts[own] = f"# {title}\n" if title else ""
            excesses[own] = 0 if title else len(re.findall(r"^#+(?= )", section, flags=re.MULTILINE)[0]) - 1
        texts[own] += _raise_headings(section, excesses[own])
    links = [f"- [{find_title(body)}]({os.path.relpath(own, folder)})" for own, body in texts.items() if own != place]
    if links:
        texts[place] += "\n## Pages\n\n" + "\n".join(links) + "\n"
    return [Part(source, own, body) for own, body in texts.items()]


def find_title(text: str) -> str:
    """Return the first heading of a page."""
    return next(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


def make_anchor(title: str) -> str:
    """Return the anchor of a heading, as the site and GitHub form it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def _raise_headings(section: str, levels: int) -> str:
    """Return a section with its headings raised by some levels. Code blocks stay unchanged."""
    return "".join(line if code or not line.startswith("#") else line[levels:] for line, code in _mark_code(section))


def _mark_code(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it belongs to a code block."""
    fence = ""
    for line in text.splitlines(keepends=True):
        marks = _FENCE.match(line)
        if marks and (not fence or line.startswith(fence)):
            fence = "" if fence else marks[1]
        yield line, bool(fence or marks)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _adapt_links(part: Part, site: Site, report_broken: Callable[[str], None]) -> Iterator[str]:
    """Yield the pieces of a page with links adapted to the site. Code blocks stay unchanged."""

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if "://" in target:
            return found[0]
        named = os.path.normpath(PurePosixPath(part.source).parent / target) if target else part.source
        place = site.locate(named, anchor)
        if named.startswith("docs/images/") and (site.root / named).is_file():
            place = named.removeprefix("docs/")
        elif place is None and (site.root / named).exists() and not found["image"]:
            return found["text"]  # in the repository, but not on the site
        elif place is None:
            report_broken(f"{part.source}: {found['target']}")
            return found[0]
        shown = "" if place == part.place and anchor else os.path.relpath(place, PurePosixPath(part.place).parent)
        return f"{found['image']}[{found['text']}]({shown}{'#' if anchor else ''}{anchor})"

    for code, lines in groupby(_mark_code(part.text), key=itemgetter(1)):
        text = "".join(line for line, _ in lines)
        yield text if code else _LINK.sub(link, _COMMENT.sub("", text))
