"""Re-exports the servers and fleets of `devservers` for tests and benchmarks."""

from devservers.fleet import Fleet, Member
from devservers.servers import (
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
