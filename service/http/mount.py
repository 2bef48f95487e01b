"""The path below which a proxy offers the gateway, taken from the public URL.

A proxy may remove the path from requests or not. Everything behind the gateway sees paths without it. Responses, pages
and the API description contain it.
"""

from contextvars import ContextVar
from urllib.parse import urlsplit

from starlette.types import Message, Scope, Send

_current: ContextVar[str] = ContextVar("mount", default="")
_WITH_PATH = (b"location", b"hx-redirect")


def mounted(path: str) -> str:
    """Return a path of this gateway as clients of the current request see it."""
    return _current.get() + path


class Mount:
    """The mount of one gateway.

    Parameters
    ----------
    public_url : str, optional
        Address of the gateway as clients see it.
    """

    def __init__(self, public_url: str | None) -> None:
        self.path = urlsplit(public_url or "").path.rstrip("/")

    def enter(self, scope: Scope, send: Send) -> tuple[Scope, Send]:
        """Return the scope without the mount, and a `send` that adds it to redirects and cookies."""
        _current.set(self.path)
        if not self.path:
            return scope, send
        path: str = scope["path"]
        if path == self.path or path.startswith(f"{self.path}/"):
            raw = scope.get("raw_path", path.encode())[len(self.path.encode()) :]
            scope = {**scope, "path": path[len(self.path) :] or "/", "raw_path": raw or b"/"}
        mount = self.path.encode()

        async def send_mounted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, _add(mount, name, value)) for name, value in message["headers"]]
            await send(message)

        return scope, send_mounted


def _add(mount: bytes, name: bytes, value: bytes) -> bytes:
    if name.lower() in _WITH_PATH and value.startswith(b"/"):
        return mount + value
    if name.lower() == b"set-cookie":
        return value.replace(b"Path=/", b"Path=" + mount + b"/")
    return value
