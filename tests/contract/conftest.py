"""Fixtures: the gateway of the tests of the service."""

from tests.service.conftest import api, database, http, no_settings, other, settings

__all__ = ["api", "database", "http", "no_settings", "other", "settings"]
