"""Access to SQLite and PostgreSQL: engine, transactions with retries, schema migration, column types and clocks.

A database URL enters; sessions inside transactions leave. `Database` is the only place that commits.
"""
