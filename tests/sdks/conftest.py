"""Shared fixtures: built packages and one running service."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from devservers.loopback import NO_TLS
from models.database.engine import Database
from tests.sdks import packages
from tests.service.api import Api
from tests.service.processes import running

UNLIMITED = {"SFUMATO_RATE_PER_KEY": "0", "SFUMATO_SOURCE_LIMIT": "none"}  # each operation creates objects


@dataclass(frozen=True)
class Live:
    """A running service."""

    url: str
    key: str

    @property
    def environment(self) -> dict[str, str]:
        return {"SFUMATO_URL": self.url, "SFUMATO_KEY": self.key}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a directory shared by all processes of the test run."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def typescript_tarball(shared: Path) -> Path:
    return packages.made_once(shared, "typescript-package", packages.typescript_package)


@pytest.fixture(scope="session")
def typescript(typescript_tarball: Path) -> Path:
    """Return the directory of the built package with its tests."""
    return typescript_tarball.parent / "sdk" / "typescript"


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    return packages.made_once(shared, "wheel", packages.wheel)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("service") / "home"
    with running(home, "serve", "--port", "0", SFUMATO_SOURCE_LIMIT="none") as service:
        url = service.url()
        yield Live(url, (home / "admin.key").read_text().strip())


@contextmanager
def serving(home: Path) -> Iterator[Api]:
    """Run a service in a new directory, and return a client with its first key."""
    key = base64.b64encode(b"\x01" * 32).decode()
    with running(home, "serve", "--port", "0", SFUMATO_RECORDS_KEY=key, **UNLIMITED) as service:
        url, secret = service.url(), (home / "admin.key").read_text().strip()
        database = Database(f"sqlite:///{home / 'sfumato.db'}")
        with httpx.Client(base_url=url, timeout=60, verify=NO_TLS) as http:
            yield Api(http, database, secret)
        database.close()
