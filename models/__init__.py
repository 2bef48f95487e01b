"""State of the service in SQL: tables, and one function per state change.

Functions take a session first and never commit; callers pass the time and the caller's identity. Rows and plain values
leave; errors of `models.errors` reject a change. The package knows neither HTTP nor algorithms.
"""
