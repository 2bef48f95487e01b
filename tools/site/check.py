"""Check the built pages: they load no external resources, and all their links have a target."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes with addresses that a browser fetches when it shows the page, except `href` of `a`.
_FETCHED = {"src", "srcset", "href", "data", "poster", "action", "formaction", "ping", "background", "manifest"}
_CSS_ADDRESS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", flags=re.IGNORECASE)
_HARMLESS = ("data:", "javascript:void", "mailto:")


class Page(HTMLParser):
    """The addresses that a page fetches, its links, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.fetched: list[str] = []
        self.followed: list[str] = []
        self.anchors: set[str] = set()
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self._in_style = tag == "style"
        self.fetched += find_css_addresses(given.get("style", ""))
        if given.get("rel") in ("canonical", "prev", "next", "alternate") and tag == "link":
            return  # the browser does not fetch this link
        for name in _FETCHED & given.keys():
            addresses = re.split(r"\s*,\s*", given[name]) if name == "srcset" else [given[name]]
            kept = self.followed if tag in ("a", "area") and name == "href" else self.fetched
            kept += [address.split()[0] for address in addresses if address.strip()]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.fetched += find_css_addresses(data)


def find_css_addresses(text: str) -> list[str]:
    """Return the addresses that a style sheet fetches."""
    return [first or second for first, second in _CSS_ADDRESS.findall(text)]


def find_problems(site: Path) -> list[str]:
    """Return the problems of a built site; empty if there are none."""
    site = site.resolve()
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else ["the site has no pages"]
    for path, page in pages.items():
        shown = path.relative_to(site).as_posix()
        found += [f"{shown} fetches {address}" for address in page.fetched if _EXTERNAL.match(address)]
        local = [address for address in page.fetched + page.followed if not _EXTERNAL.match(address)]
        broken = [address for address in local if not _exists(address, path, site, pages)]
        found += [f"{shown} links to {address}, which is missing" for address in broken]
    for path in sorted(site.rglob("*.css")):
        outside = filter(_EXTERNAL.match, find_css_addresses(path.read_text()))
        found += [f"{path.relative_to(site).as_posix()} fetches {address}" for address in outside]
    return found


def _exists(address: str, page: Path, site: Path, pages: dict[Path, Page]) -> bool:
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
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors
