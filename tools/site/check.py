"""Looks at the pages as they were built: they ask nobody else for anything, and every link leads somewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Where an address is fetched as soon as the page is seen; in an `a` it is not until somebody follows it.
_FETCHED = {"src", "srcset", "href", "data", "poster", "action", "formaction", "ping", "background", "manifest"}
_CSS_ADDRESS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", flags=re.IGNORECASE)
_HARMLESS = ("data:", "javascript:void", "mailto:")


class Page(HTMLParser):
    """What a page fetches, what it leads to, and the places within it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.fetched: list[str] = []
        self.followed: list[str] = []
        self.places: set[str] = set()
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        self._in_style = tag == "style"
        self.fetched += css_addresses(given.get("style", ""))
        if given.get("rel") in ("canonical", "prev", "next", "alternate") and tag == "link":
            return  # says where the page belongs, and fetches nothing
        for name in _FETCHED & given.keys():
            addresses = re.split(r"\s*,\s*", given[name]) if name == "srcset" else [given[name]]
            kept = self.followed if tag in ("a", "area") and name == "href" else self.fetched
            kept += [address.split()[0] for address in addresses if address.strip()]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.fetched += css_addresses(data)


def css_addresses(text: str) -> list[str]:
    """What a style sheet fetches."""
    return [first or second for first, second in _CSS_ADDRESS.findall(text)]


def complaints(site: Path) -> list[str]:
    """All that is wrong with a built site; nothing where it is as it should be."""
    site = site.resolve()
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else ["there are no pages"]
    for path, page in pages.items():
        shown = path.relative_to(site).as_posix()
        found += [f"{shown} fetches {address}" for address in page.fetched if _ELSEWHERE.match(address)]
        local = [address for address in page.fetched + page.followed if not _ELSEWHERE.match(address)]
        found += [f"{shown} leads to {address}" for address in local if not _is_there(address, path, site, pages)]
    for path in sorted(site.rglob("*.css")):
        outside = filter(_ELSEWHERE.match, css_addresses(path.read_text()))
        found += [f"{path.relative_to(site).as_posix()} fetches {address}" for address in outside]
    return found


def _is_there(address: str, page: Path, site: Path, pages: dict[Path, Page]) -> bool:
    if address.startswith(_HARMLESS):
        return True
    parts = urlsplit(address)
    place = unquote(parts.path)
    target = page if not place else (site / place.lstrip("/") if place.startswith("/") else page.parent / place)
    target = target.resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].places
