"""Fixtures of the package's tests."""

import pytest
import tenacity

from sfumato.transport import exchange


@pytest.fixture
def three_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try every request three times without waiting."""
    changes = {"stop": tenacity.stop_after_attempt(3), "wait": tenacity.wait_none()}
    policy = exchange.retry_policy
    monkeypatch.setattr(exchange, "retry_policy", lambda retry_seconds: policy(retry_seconds) | changes)
