"""Marks that choose the databases of a test."""

import pytest

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)  # rules that Python checks
on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
on_both_databases = pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
