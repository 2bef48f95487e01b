"""Parts of HTTP that every request passes: authentication, rate limits, problem documents, metrics, traces, middleware.

ASGI requests enter; requests with a caller leave to the routes, and errors leave as problem documents.
"""
