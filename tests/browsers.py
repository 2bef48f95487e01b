"""Chromium for the tests, and a server of static files."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PATIENCE_MILLISECONDS = 300_000  # limit for expected events on a busy machine


def chromium() -> str:
    """Return the path of Chromium. Raise LookupError if it is missing."""
    found = os.environ.get("SFUMATO_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        raise LookupError("no Chromium: install Debian's package chromium, or name one in SFUMATO_TEST_CHROMIUM")
    return found


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Yield a browser. Playwright runs an event loop in this thread, so tests that use it must not run another one."""
    # Tests may run as root, in a container with little shared memory.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments, timeout=PATIENCE_MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".js": "text/javascript"}  # noqa: RUF012 - as its parent has it
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing, so that requests are not logged."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the files of a directory. Yield the origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
