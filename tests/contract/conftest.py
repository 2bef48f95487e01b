"""The gateway of the service's tests."""

from tests.service.conftest import api, database, http, no_settings, other, settings

__all__ = ["api", "database", "http", "no_settings", "other", "settings"]
