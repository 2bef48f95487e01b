"""A session of the console with an admin key."""

import pytest

from tests.service.api import Api
from tests.service.console.session import Console


@pytest.fixture
def console(api: Api) -> Console:
    """Return a session of an admin key."""
    return Console(api)
