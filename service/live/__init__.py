"""Waiting for changes: the change feed between gateways, the watchers of jobs, and server-sent events.

Ids of changed jobs and datasets enter from Redis, a pipe or this process. Job documents leave to waiting requests.
"""
