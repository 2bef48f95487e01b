"""Command `sfumato shuffler`: run a shuffler and administer its senders."""

import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from connections.log_records import log_libraries
from connections.streams import guard_streams
from sfumato.errors import SfumatoError
from sfumato.transport.batches import SIGNING_KEY_BYTES, generate_signing_key_pair
from shuffler.queue import Queue, Sender
from shuffler.releases import RELEASE_SECONDS

TIMEOUT_SECONDS = 60.0  # timeout of sending a batch
LISTING_SECONDS = 3.0  # timeout of the service's list of open rounds
SLOW_SECONDS = 20.0  # timeout of the head of a request, and of a client that does not read
MAX_RESPONSE_BYTES = 1 << 20

app = typer.Typer(help="Collect sealed reports and release them in random order.", no_args_is_help=True)
Home = Annotated[Path, typer.Option(help="Directory of the database and of the signing key.", resolve_path=True)]
DEFAULT_HOME = Path(".sfumato-shuffler")


@app.command()
def run(
    home: Home = DEFAULT_HOME,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind.")] = 8100,
    release_seconds: Annotated[
        float, typer.Option(min=1, max=3000, help="Longest random delay between the last report and the release.")
    ] = RELEASE_SECONDS,
) -> None:
    """Run the shuffler. SFUMATO_URL and SFUMATO_KEY select the service and a key of it with the scope `device`."""
    import uvicorn

    from connections.server import address, bind, configuration
    from sfumato.transport.http import Http, PoolSettings
    from shuffler.app import create_app

    guard_streams()
    log_libraries(sys.stdout, logging.INFO)
    for noisy in ("httpx", "httpcore"):  # a line per request
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with _explain_failures(), closing(Queue(home / "shuffler.db")) as queue:
        service = Http(None, None, PoolSettings(TIMEOUT_SECONDS, 0, MAX_RESPONSE_BYTES))
        listing = Http(None, None, PoolSettings(LISTING_SECONDS, 0, MAX_RESPONSE_BYTES))
        with closing(service), closing(listing), bind(host, port) as bound:
            key = _signing_key(home)
            server = create_app(queue, service, key, listing=listing, release_seconds=release_seconds)
            bound.listen()  # before the line, so that a client may connect as soon as it reads it
            typer.echo(f"The shuffler listens on {address(bound, None)}")
            uvicorn.Server(configuration(server, SLOW_SECONDS)).run(sockets=[bound])


@app.command()
def public_key(home: Home = DEFAULT_HOME) -> None:
    """Print the public signing key in base64, which the dataset and the devices pin."""
    import base64

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(_signing_key(home)).public_key()
    typer.echo(base64.b64encode(key.public_bytes_raw()).decode())


@app.command()
def add_sender(
    name: Annotated[str, typer.Argument(help="Name of the device or of the app backend.")],
    dataset: Annotated[str, typer.Option(help="Id of the dataset.")],
    backend: Annotated[bool, typer.Option("--backend", help="The key belongs to an app backend.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Print the bearer key of a new sender. The shuffler stores its hash only."""
    with _explain_failures(), closing(Queue(home / "shuffler.db")) as queue:
        _print_key(queue.add_sender(Sender(name, dataset, backend)), f"there is a sender {name} already")


@app.command()
def replace_key(
    name: Annotated[str, typer.Argument(help="Name of the device or of the app backend.")], home: Home = DEFAULT_HOME
) -> None:
    """Print a new bearer key of a sender. Its old key ends, and it remains the same sender."""
    with _explain_failures(), closing(Queue(home / "shuffler.db")) as queue:
        _print_key(queue.replace_key(name), f"there is no sender {name}")


def _print_key(key: str | None, failure: str) -> None:
    if key is None:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(1)
    typer.echo(key)


def _signing_key(home: Path) -> bytes:
    """Return the signing key in `home`, which is created at the first call."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / "signing.key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != SIGNING_KEY_BYTES:
            typer.echo(f"error: {path} must have {SIGNING_KEY_BYTES} bytes", err=True)
            raise typer.Exit(1) from None
        return key
    key, _ = generate_signing_key_pair()
    with open(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


@contextmanager
def _explain_failures() -> Iterator[None]:
    try:
        yield
    except (SfumatoError, OSError, sqlite3.Error) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app(prog_name="sfumato shuffler")
