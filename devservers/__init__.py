"""Private PostgreSQL and Redis servers and whole Sfumato fleets on loopback, for the demo, benchmarks and tests.

A caller starts a server or a fleet as a context. Its processes end with the context, or with the caller's process.
"""
