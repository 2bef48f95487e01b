"""Fixtures of the package's tests."""

from collections.abc import Iterator

import pytest
import stamina


@pytest.fixture
def three_attempts() -> Iterator[None]:
    """Try every request three times without waiting."""
    with stamina.set_testing(True, attempts=3):
        yield
