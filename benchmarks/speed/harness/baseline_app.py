"""Baseline of single reports: an application that reads the body and responds 202, with the gateway's server settings.

`python -m benchmarks.speed.harness.baseline_app` serves it on a free port of 127.0.0.1 and prints the address.
"""

import socket
import sys

import uvicorn
from starlette.types import Receive, Scope, Send

from connections.server import IDLE_SECONDS

RESPONSE = b'{"round_id":"rnd_00000000000000000000000000","accepted":1}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(RESPONSE))]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
    await send({"type": "http.response.body", "body": RESPONSE})


def main() -> None:
    """Serve until SIGTERM."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    sys.stdout.write(f"Sfumato listens on http://{host}:{port}\n")  # the message of the gateway
    sys.stdout.flush()
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
