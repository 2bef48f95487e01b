"""The mount of the console in the gateway."""

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send


class Console:
    """An ASGI application, mounted at `PATH`, that loads the console at the first request.

    Parameters
    ----------
    app : FastAPI
        The gateway. The pages call its routes.
    """

    def __init__(self, app: FastAPI) -> None:
        self._gateway = app
        self._site: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if self._site is None:
            site = await run_in_threadpool(_load, self._gateway)
            self._site = self._site or site
        await self._site(scope, receive, send)


def _load(app: FastAPI) -> ASGIApp:
    from service.console.app import Site  # loading templates takes 0.1 s, and many gateways never show a page

    return Site(app)
