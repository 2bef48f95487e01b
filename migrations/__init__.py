"""Alembic migrations of the schema that `models.tables` declares. `sfumato migrate` runs them on a database URL."""
