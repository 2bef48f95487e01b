"""The connection of commands to a service: address, key, errors and output as JSON."""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from service.cli.common import AsJson, CommandFailed, load_settings, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.api.client import Client

P = ParamSpec("P")
Found = TypeVar("Found")

Url = Annotated[
    str | None,
    typer.Option("--url", help="URL of the service.", show_default="SFUMATO_URL, or that of `sfumato serve`"),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Key of the service. Prefer SFUMATO_KEY, because other users of the machine can list arguments.",
        show_default="SFUMATO_KEY, or that of `sfumato serve`",
    ),
]
_OPTIONS: dict[str, tuple[Any, Any]] = {"url": (Url, None), "key": (Key, None), "as_json": (AsJson, False)}


class Unusable(Exception):
    """Input that cannot be sent. The message never contains a value of a file."""


@dataclass(frozen=True)
class Service:
    """A connected client, and the format of the output."""

    client: "Client"
    as_json: bool

    def show(self, path: str, text: "str | Callable[[Console], object]", **params: str) -> None:
        """Print an object of the HTTP API as JSON; else a text, or what a function prints on the console."""
        if self.as_json:
            from sfumato.transport.exchange import get

            print_json(self.client._http.send(get(path, **params)).read(dict))
        elif isinstance(text, str):
            typer.echo(text)
        else:
            self._print(text)

    def show_list(
        self, path: str, print_found: "Callable[[Console, Found], object]", found: Found, **filters: str | None
    ) -> None:
        """Print the items of a list of the HTTP API as lines of JSON, or as a table."""
        if self.as_json:
            from sfumato.transport.exchange import Listing, drop_none
            from sfumato.transport.operations import iterate_pages

            for item in iterate_pages(self.client._http, Listing(path, dict[str, Any], drop_none(filters))):
                print_json(item)
        else:
            self._print(lambda console: print_found(console, found))

    def show_forecast(
        self,
        print_found: "Callable[[Console, Found], object]",
        found: Found,
        to_wire: Callable[[Found], dict[str, Any]],
    ) -> None:
        """Print a forecast as JSON, or as a text."""
        if self.as_json:
            print_json(to_wire(found))
        else:
            self._print(lambda console: print_found(console, found))

    @staticmethod
    def _print(print_text: "Callable[[Console], object]") -> None:
        from service.cli.tables import open_console

        print_text(open_console())


def service_address(home: Path, url: str | None = None, key: str | None = None) -> tuple[str, str]:
    """Return (url, key) from options, from SFUMATO_URL and SFUMATO_KEY, or from the files of `sfumato serve`.

    Raises
    ------
    Unusable
        One of them is missing.
    """
    from service.cli.serve import ADMIN_KEY, URL

    values = []
    for given, variable, file in ((url, "SFUMATO_URL", home / URL), (key, "SFUMATO_KEY", home / ADMIN_KEY)):
        value = (given or os.environ.get(variable, "")).strip()
        if not value:
            try:
                value = file.read_text(encoding="ascii").strip()
            except OSError:
                option = variable.removeprefix("SFUMATO_").lower()
                raise Unusable(f"set {variable} or --{option}, or run `sfumato serve` here") from None
        values.append(value)
    return values[0], values[1]


@contextmanager
def connect(url: str | None, key: str | None, **options: Any) -> Iterator["Client"]:
    """Return a context with a client. It ends the command with a sentence if the service rejects a call."""
    from sfumato.api.client import Client
    from sfumato.errors import SfumatoError

    try:
        with Client(*service_address(load_settings().home, url, key), **options) as client:
            yield client
    except (SfumatoError, Unusable) as error:
        raise CommandFailed(_name_options(str(error))) from None


def _name_options(message: str) -> str:
    """Return a message of the HTTP API with its members `allow_...` as options of the command."""
    return re.sub(r"\ballow_(\w+)(?:=true)?", r"--allow-\1", message)


def calls_service(
    function: Callable[Concatenate[Service, P], None] | None = None, **client_options: Any
) -> Callable[..., Any]:
    """Decorate a function of a Service and arguments as a command, with the options --url, --key and --json."""
    if function is None:
        return functools.partial(calls_service, **client_options)

    @functools.wraps(function)
    def command(url: str | None, key: str | None, as_json: bool, **arguments: Any) -> None:
        with connect(url, key, **client_options) as client:
            function(Service(client, as_json), **arguments)  # type: ignore[call-arg]

    own: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    parameters = [
        *[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in list(own.values())[1:]],
        *[
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in _OPTIONS.items()
        ],
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
