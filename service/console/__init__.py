"""The web console: pages for people, over the gateway's own API. It is made when somebody first asks for it."""

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/console"


class Console:
    """Pure ASGI, mounted at `PATH`: what it is made of is loaded by the first request.

    Parameters
    ----------
    app : FastAPI
        The gateway: its routes answer what the pages show.
    """

    def __init__(self, app: FastAPI) -> None:
        self._gateway = app
        self._site: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if self._site is None:
            site = await run_in_threadpool(_load, self._gateway)
            self._site = self._site or site
        await self._site(scope, receive, send)


def _load(app: FastAPI) -> ASGIApp:
    from service.console.site import Site  # templates cost a tenth of a second, and many gateways show no page

    return Site(app)
