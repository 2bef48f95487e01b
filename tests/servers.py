"""The servers of `demo.servers` and the fleet over them, under the name that tests and benchmarks know them by."""

from demo.fleet import Fleet, Member
from demo.servers import (
    SCRATCH_PREFIX,
    PostgresServer,
    RedisServer,
    ServerFailed,
    ServerMissing,
    free_port,
    postgres_installations,
    redis_installations,
)

__all__ = [
    "SCRATCH_PREFIX",
    "Fleet",
    "Member",
    "PostgresServer",
    "RedisServer",
    "ServerFailed",
    "ServerMissing",
    "free_port",
    "postgres_installations",
    "redis_installations",
]
