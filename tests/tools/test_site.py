"""Tests of the documentation site: links, navigation, references, external resources, and a build."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Page

import sfumato
from sfumato.specs import ALGORITHMS, CENTRAL_ALGORITHMS
from tests.browsers import PATIENCE_MILLISECONDS, opened_browser
from tools import gallery
from tools.site import check, references, staging
from tools.site.__main__ import (
    NavigationError,
    fill_configuration,
    generate_pages,
    make_repository_link,
    render_api_reference,
)

ROOT = Path(__file__).parents[2]
GENERATED = ("api/index.md", "commands.md", "settings.md", "data-model.md", "python.md", "gallery.md")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a small repository."""
    for name in ("docs/decisions", "docs/images", "sdk/python", "openapi/vectors"):
        (tmp_path / name).mkdir(parents=True)
    for name in staging.FILES:
        (tmp_path / name).write_text("{}")
    (tmp_path / "docs/images/map.png").write_bytes(b"")
    (tmp_path / "docs/decisions/README.md").write_text("# Decisions\n")
    (tmp_path / "docs/index.md").write_text("# Home\n")
    (tmp_path / "sdk/python/README.md").write_text("# Python\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n")
    return tmp_path


class TestStaging:
    def staged(self, repository: Path, text: str) -> str:
        (repository / "docs" / "decisions" / "0001-x.md").write_text(text)
        staging.stage(repository / "out", {}, repository)
        return (repository / "out" / "decisions" / "0001-x.md").read_text()

    @pytest.mark.parametrize(
        ("link", "expected"),
        [
            ("[a](README.md)", "[a](index.md)"),
            ("[a](../index.md#b)", "[a](../index.md#b)"),
            ("[a](../../sdk/python/README.md#b)", "[a](../sdk/python.md#b)"),
            ("[a](../../openapi/vectors/caps.json)", "[a](../vectors/caps.json)"),
            ("![a](../images/map.png)", "![a](../images/map.png)"),
            ("[a](#b) and [c](https://example.org/d)", "[a](#b) and [c](https://example.org/d)"),
            ("see [the vectors](../../openapi/vectors)", "see the vectors"),
        ],
    )
    def test_links_are_adapted_to_the_site(self, repository: Path, link: str, expected: str) -> None:
        assert self.staged(repository, link + "\n") == expected + "\n"

    def test_code_blocks_stay_and_comments_are_removed(self, repository: Path) -> None:
        text = "<!-- not run: x -->\n```sh\n[a](nowhere)\n<!-- b -->\n```\n"
        assert self.staged(repository, text) == "\n" + text.split("\n", 1)[1]

    @pytest.mark.parametrize("link", ["[a](gone.md)", "![a](../images/gone.png)", "![a](../../sdk/python)"])
    def test_a_broken_link_is_an_error(self, repository: Path, link: str) -> None:
        with pytest.raises(staging.BrokenLink, match=r"docs/decisions/0001-x\.md: "):
            self.staged(repository, link)

    def test_all_pages_of_the_repository_are_staged(self, tmp_path: Path) -> None:
        pages = staging.stage(tmp_path / "pages", {"made.md": "# Made\n"})
        assert {"index.md", "decisions/index.md", "sdk/typescript.md", "changelog.md", "made.md"} <= set(pages)
        assert all((tmp_path / "pages" / page).is_file() for page in pages)
        assert json.loads((tmp_path / "pages" / "api" / "openapi.json").read_text())["openapi"]


class TestDivision:
    TEXT = """# A

<!-- page: b/c.md -->

## C

### D

```python
## code
```

<!-- page: b/e.md "E and F" -->

## F

[to C](#c), [to D](a.md#d), [to itself](#f), [to A](a.md)

<!-- page: a.md -->

## G

<!-- page: b/c.md -->

### H
"""

    def test_sections_become_pages_and_links_follow_them(self, repository: Path) -> None:
        (repository / "docs" / "a.md").write_text(self.TEXT)
        staging.stage(repository / "out", {}, repository)
        pages = {name: (repository / "out" / name).read_text() for name in ("a.md", "b/c.md", "b/e.md")}
        headings = {name: [line for line in text.splitlines() if line[:1] == "#"] for name, text in pages.items()}
        assert headings["a.md"] == ["# A", "## G", "## Pages"]
        assert headings["b/c.md"] == ["# C", "## D", "## code", "## H"]
        assert headings["b/e.md"] == ["# E and F", "## F"]
        assert "[to C](c.md#c), [to D](c.md#d), [to itself](#f), [to A](../a.md)" in pages["b/e.md"]
        assert pages["a.md"].endswith("- [C](b/c.md)\n- [E and F](b/e.md)\n")

    def test_no_page_of_the_evidence_has_more_than_3000_words(self) -> None:
        evidence = ("audit", "benchmarks", "speed", "errata", "faults", "decisions/", "privacy")
        words = {
            part.place: sum(any(letter.isalpha() for letter in word) for word in part.text.split())
            for part in staging.Site().parts
            if part.place.startswith(evidence)
        }
        assert len(words) > 40
        assert {place: n for place, n in words.items() if n > 3000} == {}

    @pytest.mark.parametrize("tag", ALGORITHMS)
    def test_each_algorithm_is_described_in_the_same_order(self, tag: str) -> None:
        (text,) = (part.text for part in staging.Site().parts if part.place == f"algorithms/{tag}.md")
        parts = (
            "![",
            "**When to use.**",
            "**Method.**",
            f"<!-- begin: parameters-{tag} -->",
            "**Cost.**",
            "**Quality.**",
            "**Reference.**",
        )
        places = [text.find(f"\n{part}") for part in parts]
        assert -1 not in places
        assert places == sorted(places)


class TestShape:
    CONFIGURATION = '[project]\nnav = [{ "A" = "a.md" }, { "B" = ["b/index.md", "b/*"] }]\n'

    def test_a_folder_is_replaced_by_its_pages(self) -> None:
        shaped = fill_configuration(["a.md", "b/index.md", "b/2.md", "b/1.md"], self.CONFIGURATION)
        assert '["b/index.md", "b/1.md", "b/2.md"]' in shaped

    @pytest.mark.parametrize(
        ("pages", "words"),
        [
            (["a.md", "b/index.md", "b/1.md", "c.md"], "c.md is not in the navigation"),
            (["b/index.md", "b/1.md"], "a.md is in the navigation but is not a page"),
        ],
    )
    def test_a_page_too_many_or_too_few_is_an_error(self, pages: list[str], words: str) -> None:
        with pytest.raises(NavigationError, match=words):
            fill_configuration(pages, self.CONFIGURATION)

    def test_the_navigation_has_all_pages_of_the_repository(self) -> None:
        pages = [*(part.place for part in staging.Site().parts), *GENERATED]
        shaped = fill_configuration(pages)
        assert [page for page in pages if f'"{page}"' not in shaped] == []

    @pytest.mark.parametrize(
        ("origin", "link"),
        [
            ("git@git.example:a/b.git\n", "https://git.example/a/b"),
            ("https://user:word@git.example/a/b", "https://git.example/a/b"),
            ("/srv/b.git", ""),
            ("", ""),
        ],
    )
    def test_the_repository_is_linked_if_it_has_a_page(self, origin: str, link: str) -> None:
        assert make_repository_link(origin) == (link and f"<a href='{link}'>Repository</a> ·")


class TestGallery:
    def test_has_a_picture_of_every_algorithm(self) -> None:
        assert {*ALGORITHMS, *CENTRAL_ALGORITHMS} <= gallery.PICTURES.keys()
        assert {path.stem for path in gallery.FOLDER.glob("*.png")} == gallery.PICTURES.keys() | {
            gallery.CARDS,
            gallery.REPORTED,
            gallery.CATEGORIES,
            gallery.SERIES,
        }


class TestReferences:
    def test_every_heading_of_the_python_page_has_names(self) -> None:
        exported = {module: references.list_exports(module) for _, modules in references.PARTS for module in modules}
        assert [module for module, names in exported.items() if not names] == []

    def test_the_api_page_is_one_block_of_html(self) -> None:
        page = render_api_reference()
        assert "href='openapi.json'" in page
        assert "\n\n" not in page  # a blank line could end the block in Markdown

    def test_the_python_page_has_all_exports(self) -> None:
        page = references.python_page()
        missing = [name for name in sfumato.__all__ if f".{name}\n" not in page and name != "__version__"]
        assert missing == []


class TestCheck:
    HARMLESS = '<a href="https://example.org">x</a><a href="b.html#there">y</a><img src="data:image/png;base64,x">'

    def find_problems(self, site: Path, html: str, css: str = "") -> list[str]:
        (site / "a.html").write_text(f"<!doctype html><title>a</title>{html}")
        (site / "b.html").write_text("<!doctype html><title>b</title><h1 id='there'>b</h1>")
        (site / "a.css").write_text(css)
        return check.find_problems(site)

    def test_a_correct_page_has_no_problems(self, tmp_path: Path) -> None:
        assert self.find_problems(tmp_path, self.HARMLESS, "a { background: url(data:x) }") == []

    @pytest.mark.parametrize(
        "html",
        [
            '<script src="https://cdn.example/x.js"></script>',
            '<link rel="stylesheet" href="//fonts.example/x.css">',
            '<link rel="preconnect" href="https://fonts.example">',
            '<img src="a.html" srcset="a.html 1x, https://img.example/x.png 2x">',
            "<style>@import 'https://fonts.example/x.css';</style>",
            '<p style="background: url(https://img.example/x.png)">x</p>',
            '<form action="https://example.org"></form>',
            '<a href="gone.html">x</a>',
            '<a href="b.html#gone">x</a>',
            '<a href="#gone">x</a>',
            '<img src="gone.png">',
        ],
    )
    def test_external_resources_and_broken_links_are_problems(self, tmp_path: Path, html: str) -> None:
        assert len(self.find_problems(tmp_path, html)) == 1

    def test_external_resources_of_style_sheets_are_problems(self, tmp_path: Path) -> None:
        assert self.find_problems(tmp_path, "", "a { src: url('https://fonts.example/x.woff2') }") != []

    def test_an_empty_site_is_a_problem(self, tmp_path: Path) -> None:
        assert check.find_problems(tmp_path) == ["the site has no pages"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[Page]:
    """Return a page of Chromium."""
    with opened_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        yield page


@contextmanager
def served(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.release
class TestSite:
    def test_the_built_site_has_all_pages_and_loads_no_external_resources(self, page: Page) -> None:
        built = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
        site = ROOT / "build" / "site"
        expected = {
            place.removesuffix(".md") + ".html"
            for place in (*(part.place for part in staging.Site().parts), *generate_pages())
        }
        assert expected <= {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        requested: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        with served(site) as address:
            for place in (
                "tutorials/app",
                "algorithms/phase_sketch",
                "gallery",
                "api/index",
                "python",
                "commands",
                "benchmarks",
                "index",
            ):
                page.goto(f"{address}/{place}.html", wait_until="networkidle")
                assert page.locator("article h1").count() == 1
            assert sfumato.__version__ in page.locator(".md-header__title").inner_text()
            for word in ("epsilon", "duplicate", "budget"):
                page.keyboard.press("Control+k")
                page.keyboard.type(word)
                page.locator("a[role=option]").first.wait_for()
                page.goto(f"{address}/index.html", wait_until="networkidle")
            page.keyboard.press("Control+k")
            page.keyboard.type("budget_exhausted")
            page.locator("a[role=option][href*='errors.html']").first.wait_for()
            outside = [url for url in requested if not url.startswith((address, "data:", "blob:"))]
        assert (outside, errors) == ([], [])
