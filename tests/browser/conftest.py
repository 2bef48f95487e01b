"""A service of the tests' own and a real browser before it: Debian's Chromium, driven by Playwright.

The browser is the one `SFUMATO_TEST_CHROMIUM` names, or the machine's `chromium`; a missing
one is an error, never a skip. What a page says on its console, and what it asks of anybody
but the service, is kept and looked at after every test.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from sfumato import Client
from tests.service.processes import running

PATIENCE_MILLISECONDS = 120_000  # for what must come, on a machine however busy


@dataclass
class Served:
    """`sfumato serve`, and a way to it."""

    url: str
    secret: str
    client: Client


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A Chromium of the test's own: while one is driven, an event loop runs, and no other test of the process could."""
    path = os.environ.get("SFUMATO_TEST_CHROMIUM") or shutil.which("chromium")
    assert path is not None, "no browser: install chromium, or name one in SFUMATO_TEST_CHROMIUM"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The service as it starts on a laptop, with a worker."""
    home = tmp_path_factory.mktemp("served") / "home"
    with running(home, "serve", "--port", "0") as service:
        url = service.url()
        secret = (home / "admin.key").read_text().strip()
        with Client(url, secret) as client:
            yield Served(url, secret, client)


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Callable[..., Watched]]:
    """Opens a page in a browser of its own: `opened(color_scheme="dark")`. Whatever went wrong fails the test."""
    with watching(browser, served.url) as open_page:
        yield open_page


@contextmanager
def watching(browser: Browser, url: str) -> Iterator[Callable[..., Watched]]:
    """A way to open pages of a service; in the end none may have complained, nor asked anybody else."""
    pages: list[Watched] = []

    def open_page(**options: object) -> Watched:
        context = browser.new_context(base_url=url, **options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        watched = Watched(context.new_page())
        page = watched.page
        page.on("console", lambda said: watched.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith((url, "data:")) else watched.outside.append(asked.url)
        )
        pages.append(watched)
        return watched

    yield open_page
    found = [(watched.errors, watched.outside) for watched in pages]
    for watched in pages:
        watched.page.context.close()
    assert found == [([], [])] * len(pages)


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker's source."""
    return (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
