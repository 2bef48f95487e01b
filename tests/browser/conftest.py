"""Fixtures for tests with a service process and Chromium, driven by Playwright.

A missing browser is an error, not a skip. After each test the fixtures check that no page logged an error or sent a
request to another server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from sfumato import Client
from tests.browsers import PATIENCE_MILLISECONDS, opened_browser
from tests.service.processes import running


@dataclass
class Served:
    """A running `sfumato serve` with a client."""

    url: str
    secret: str
    client: Client


@dataclass
class Watched:
    """A page with its errors and its requests to other servers."""

    page: Page
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a Chromium for the tests of a module. Each test opens contexts of its own."""
    with opened_browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start `sfumato serve`, which includes a worker."""
    home = tmp_path_factory.mktemp("served") / "home"
    with running(home, "serve", "--port", "0") as service:
        url = service.url()
        secret = (home / "admin.key").read_text().strip()
        with Client(url, secret) as client:
            yield Served(url, secret, client)


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens a page in a new browser context. Errors on the page fail the test."""
    with watching(browser, served.url) as open_page:
        yield open_page


@contextmanager
def watching(browser: Browser, url: str) -> Iterator[Callable[..., Watched]]:
    """Yield a function that opens pages of a service. At the end check their errors and foreign requests."""
    pages: list[Watched] = []

    def open_page(**options: object) -> Watched:
        context = browser.new_context(base_url=url, **options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        watched = Watched(context.new_page())
        page = watched.page
        page.on(
            "console",
            lambda message: watched.errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith((url, "data:")) else watched.outside.append(request.url),
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
    """Return the source of the accessibility checker axe."""
    return (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
