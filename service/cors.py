"""Which web pages of other origins may report: the two paths of devices answer them, no other path does.

A browser lets a page read an answer of another origin only where the answer says so. Devices
fetch rounds and send reports, so `SFUMATO_CORS_ORIGINS` names the pages that may; what an
analyst or an administrator does is not done from pages of other origins. No cookie is taken
anywhere: a page sends its key itself, and who has the key needs no browser.
"""

import re

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

PREFLIGHT_SECONDS = 600  # how long a browser may remember that it may ask; some keep to less
SENT = ("Authorization", "Content-Type", "If-None-Match")
TOLD = ("ETag", "Retry-After")  # what the device reads of an answer, beside its body

_PATHS = (
    ("GET", re.compile("/v1/datasets/[^/]+/round")),
    ("POST", re.compile("/v1/rounds/[^/]+/reports")),
)


class DeviceCors:
    """Outside of everything that answers, so that pages can read problems too.

    Preflights carry no key and are answered here: nobody is looked up, counted or logged.

    Parameters
    ----------
    origins : tuple of str
        As browsers send them; `*` is every one.
    """

    def __init__(self, app: ASGIApp, *, origins: tuple[str, ...]) -> None:
        self._app = app
        self._allowing = {
            method: CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=(method,),
                allow_headers=SENT,
                allow_credentials=False,
                expose_headers=TOLD,
                max_age=PREFLIGHT_SECONDS,
            )
            for method, _ in _PATHS
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            for method, path in _PATHS:
                if scope["method"] in (method, "OPTIONS") and path.fullmatch(scope["path"]):
                    await self._allowing[method](scope, receive, send)
                    return
        await self._app(scope, receive, send)
