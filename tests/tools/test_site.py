"""How the site is made: links that fit it, a shape without gaps, pages that ask nobody else; and the site itself."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Page, sync_playwright

import sfumato
from service import problems
from tools.site import api, check, commands, python, shape, staging
from tools.site.__main__ import made_pages

ROOT = Path(__file__).parents[2]
PATIENCE_MILLISECONDS = 120_000  # for what must come, on a machine however busy


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository in small."""
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
    def staged(self, house: Path, text: str) -> str:
        (house / "docs" / "decisions" / "0001-x.md").write_text(text)
        staging.stage(house / "out", {}, house)
        return (house / "out" / "decisions" / "0001-x.md").read_text()

    @pytest.mark.parametrize(
        ("written", "shown"),
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
    def test_a_link_leads_where_the_site_has_it(self, house: Path, written: str, shown: str) -> None:
        assert self.staged(house, written + "\n") == shown + "\n"

    def test_code_stays_as_it_is_and_comments_go(self, house: Path) -> None:
        text = "<!-- not run: x -->\n```sh\n[a](nowhere)\n<!-- b -->\n```\n"
        assert self.staged(house, text) == "\n" + text.split("\n", 1)[1]

    @pytest.mark.parametrize("link", ["[a](gone.md)", "![a](../images/gone.png)", "![a](../../sdk/python)"])
    def test_a_link_that_leads_nowhere_stops_it(self, house: Path, link: str) -> None:
        with pytest.raises(staging.BrokenLink, match=r"docs/decisions/0001-x\.md: "):
            self.staged(house, link)

    def test_every_page_of_this_house_is_staged(self, tmp_path: Path) -> None:
        pages = staging.stage(tmp_path / "pages", {"made.md": "# Made\n"})
        assert {"index.md", "decisions/index.md", "sdk/typescript.md", "changelog.md", "made.md"} <= set(pages)
        assert all((tmp_path / "pages" / page).is_file() for page in pages)
        assert json.loads((tmp_path / "pages" / "api" / "openapi.json").read_text())["openapi"]


class TestShape:
    CONFIGURATION = '[project]\nnav = [{ "A" = "a.md" }, { "B" = ["b/index.md", "b/*"] }]\n'

    def test_a_folder_is_filled_in(self) -> None:
        shaped = shape.configured(["a.md", "b/index.md", "b/2.md", "b/1.md"], self.CONFIGURATION)
        assert '["b/index.md", "b/1.md", "b/2.md"]' in shaped

    @pytest.mark.parametrize(
        ("pages", "words"),
        [
            (["a.md", "b/index.md", "b/1.md", "c.md"], "c.md is not in the navigation"),
            (["b/index.md", "b/1.md"], "a.md is in the navigation and is no page"),
        ],
    )
    def test_a_page_too_many_or_too_few_stops_it(self, pages: list[str], words: str) -> None:
        with pytest.raises(shape.Misshapen, match=words):
            shape.configured(pages, self.CONFIGURATION)

    def test_this_house_has_a_place_for_every_page(self) -> None:
        shape.configured(
            [*staging.pages().values(), *(f"api/{name}.md" for name in ("index", "jobs", "problems", "schemas")), *MADE]
        )


MADE = ("commands.md", "settings.md", "python.md")


class TestReferences:
    def test_a_kind_is_said_in_a_few_words(self) -> None:
        assert api.kind({"$ref": "#/components/schemas/NewJob"}) == "[NewJob](schemas.md#newjob)"
        assert api.kind({"type": "integer", "minimum": 1, "maximum": 9}) == "integer, ≥ 1, ≤ 9"
        assert api.kind({"type": "array", "items": {"enum": ["a", "b"]}}) == 'list of `"a"` or `"b"`'
        assert api.kind({"anyOf": [{"type": "string", "default": "x"}, {"type": "null"}]}) == (
            'string, by default `"x"` or null'
        )

    def test_every_problem_of_an_operation_leads_to_what_to_do(self) -> None:
        document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
        jobs = api.pages(document)["jobs.md"]
        assert "[`budget_exhausted`](problems.md#budget_exhausted)" in jobs
        told = re.findall(r"^## (\w+) \{", api.pages(document)["problems.md"], flags=re.MULTILINE)
        unasked = {"method_not_allowed", "too_few_reports"}  # of a path without an operation; of a job that ended
        assert sorted(told) == sorted({kind.code for kind in problems.ALL_PROBLEMS} - unasked)
        assert "`POST /v1/jobs`" in jobs

    def test_every_export_of_the_package_is_told(self) -> None:
        page = python.page()
        missing = [name for name in sfumato.__all__ if f".{name}\n" not in page and name != "__version__"]
        assert missing == []

    def test_every_command_is_told_with_its_options(self) -> None:
        page = commands.page()
        for name in ("serve", "worker", "demo", "audit", "keys create", "audit-trail verify"):
            assert f"## sfumato {name} {{ #" in page
        told = {
            name: [written.split()[0] for written, _ in commands.takes(text)]
            for name, text in commands.commands().items()
        }
        assert {"--host", "--port", "--home"} <= set(told["serve"])
        assert {"--quick", "--planted", "--seed"} <= set(told["audit"])
        assert {"--reports", "--bounds", "--production"} <= set(told["demo"])
        assert {"name", "--scope", "--expires-days"} <= set(told["keys create"])


class TestTheLook:
    HARMLESS = '<a href="https://example.org">x</a><a href="b.html#there">y</a><img src="data:image/png;base64,x">'

    def looked(self, site: Path, html: str, css: str = "") -> list[str]:
        (site / "a.html").write_text(f"<!doctype html><title>a</title>{html}")
        (site / "b.html").write_text("<!doctype html><title>b</title><h1 id='there'>b</h1>")
        (site / "a.css").write_text(css)
        return check.complaints(site)

    def test_lets_a_good_page_pass(self, tmp_path: Path) -> None:
        assert self.looked(tmp_path, self.HARMLESS, "a { background: url(data:x) }") == []

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
    def test_notices_what_is_fetched_elsewhere_or_leads_nowhere(self, tmp_path: Path, html: str) -> None:
        assert len(self.looked(tmp_path, html)) == 1

    def test_notices_what_a_style_sheet_fetches(self, tmp_path: Path) -> None:
        assert self.looked(tmp_path, "", "a { src: url('https://fonts.example/x.woff2') }") != []

    def test_an_empty_site_is_none(self, tmp_path: Path) -> None:
        assert check.complaints(tmp_path) == ["there are no pages"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_said: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a real browser."""
    path = os.environ.get("SFUMATO_TEST_CHROMIUM") or shutil.which("chromium")
    assert path is not None, "no browser: install chromium, or name one in SFUMATO_TEST_CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        yield page
        browser.close()


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


@pytest.mark.slow
@pytest.mark.ci
class TestTheSite:
    def test_is_built_has_every_page_and_asks_nobody_else_in_a_browser(self, page: Page) -> None:
        built = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
        site = ROOT / "build" / "site"
        expected = {place.removesuffix(".md") + ".html" for place in (*staging.pages().values(), *made_pages())}
        assert expected <= {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        with served(site) as address:
            for place in ("quickstart-app", "api/jobs", "python", "commands", "benchmarks", "index"):
                page.goto(f"{address}/{place}.html", wait_until="networkidle")
                assert page.locator("article h1").count() == 1
            page.keyboard.press("Control+k")
            page.keyboard.type("budget_exhausted")
            page.locator("a[role=option][href*='errors.html']").first.wait_for()
            outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
        assert (outside, errors) == ([], [])
