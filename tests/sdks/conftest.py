"""Shared fixtures: built packages and one running service."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sdks import packages
from tests.service.processes import running


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
