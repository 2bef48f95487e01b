"""Authentication by bearer keys, which are stored as SHA-256 hashes, and checks of their scopes."""

import asyncio
import time
from dataclasses import dataclass, replace

from fastapi import Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from models.database.engine import Database
from models.identity import keys
from models.identity.caller import Caller
from models.tables.identity import Scope
from service.http.headers import bearer_secret
from service.http.problems import BadRequest, Forbidden, Unauthenticated
from service.http.rate_limits import RateLimits
from service.http.route_table import entry_of

CACHE_SECONDS = 1.0  # a revoked key is accepted for at most this long after its last lookup
_MAX_CACHED = 10_000
_MAX_HEADER_BYTES = 200
INVALID_KEY = "this key is unknown, expired or revoked: use a valid key"
_BEARER = b"Bearer "  # the usual spelling; other spellings of the scheme are accepted too

documented_key = HTTPBearer(
    auto_error=False, scheme_name="key", description="A key of the tenant, sent as `Authorization: Bearer sfk_...`."
)


class KeyCache:
    """A cache of valid keys; each is looked up in the database at most once per CACHE_SECONDS.

    Unknown keys are not cached, because a client can send any number of them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: dict[bytes, tuple[Caller, float]] = {}
        self._lookups: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._suspicious = asyncio.Lock()

    async def find_caller(self, authorization: bytes | None, *, is_suspicious: bool = False) -> Caller:
        """Return the caller of an `Authorization` header. Raise Unauthenticated if the key is not valid.

        Parameters
        ----------
        authorization : bytes or None
        is_suspicious : bool
            Look up a key that is not in the cache after all other suspicious ones, one at a time.
        """
        secret_hash = keys.hash_secret(_secret(authorization))
        cached = self._cached.get(secret_hash)
        caller: Caller | None
        if cached and cached[1] > time.monotonic():
            caller = cached[0]
        elif cached is None and is_suspicious:
            async with self._suspicious:
                caller = await self._fetch(secret_hash)
        else:
            caller = await self._fetch(secret_hash)
        if caller is None or self._is_expired(caller):
            raise Unauthenticated(INVALID_KEY)
        return caller

    def cached_caller(self, authorization: bytes | None) -> Caller | None:
        """Return the caller if the key is cached and the header has its usual spelling, or None."""
        if authorization is None or not authorization.startswith(_BEARER) or len(authorization) > _MAX_HEADER_BYTES:
            return None
        cached = self._cached.get(keys.hash_secret(authorization[len(_BEARER) :]))
        return cached[0] if cached and cached[1] > time.monotonic() and not self._is_expired(cached[0]) else None

    def _is_expired(self, caller: Caller) -> bool:
        return caller.expires_at is not None and caller.expires_at <= self._database.clock()

    async def _fetch(self, secret_hash: bytes) -> Caller | None:
        """Look a key up. Concurrent requests with the same key share one lookup."""
        task = self._lookups.get(secret_hash)
        if task is None:
            until = time.monotonic() + CACHE_SECONDS  # counted from the start of the lookup
            task = asyncio.create_task(run_in_threadpool(self._read, secret_hash))
            self._lookups[secret_hash] = task
            task.add_done_callback(lambda done: self._store(secret_hash, done, until))
        return await asyncio.shield(task)

    def _store(self, secret_hash: bytes, done: "asyncio.Task[Caller | None]", until: float) -> None:
        del self._lookups[secret_hash]
        if done.cancelled() or done.exception() is not None:
            return
        if (caller := done.result()) is None:
            self._cached.pop(secret_hash, None)
            return
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[secret_hash] = (caller, until)

    def _read(self, secret_hash: bytes) -> Caller | None:
        with self._database.reading() as session:
            return keys.authenticate(session, secret_hash, now=self._database.clock())

    def invalidate(self) -> None:
        """Mark all cached keys as stale, after a key was revoked or replaced."""
        self._cached = {secret_hash: (caller, 0.0) for secret_hash, (caller, _) in self._cached.items()}


def _secret(authorization: bytes | None) -> str:
    secret = None if authorization is None or len(authorization) > _MAX_HEADER_BYTES else bearer_secret(authorization)
    if secret is None:
        raise Unauthenticated("the key is missing: send `Authorization: Bearer <key>`")
    return secret


def _authorization(scope: AsgiScope) -> bytes | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) > 1:  # a proxy may have checked the other one
        raise BadRequest("the request has several `Authorization` headers: send one")
    return values[0] if values else None


class Authentication:
    """Middleware that requires a valid key below `/v1`, and applies rate limits before the body is read."""

    def __init__(self, app: ASGIApp, *, key_cache: KeyCache, limits: RateLimits) -> None:
        self._app = app
        self._key_cache = key_cache
        self._limits = limits

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle one request and store the caller in its `state`."""
        if scope["type"] == "http":
            limits = self._limits
            if limits.per_address is not None:
                await limits.count_address(scope)
            if entry_of(scope).needs_key:
                authorization = _authorization(scope)
                try:
                    caller = await self._key_cache.find_caller(authorization, is_suspicious=limits.is_slowed(scope))
                except Unauthenticated:
                    await limits.count_failure(scope)
                    raise
                scope["state"]["caller"] = caller
                policy = limits.policy_for(scope, caller)
                if policy is not None:
                    await limits.count_key(scope, policy, caller)
        await self._app(scope, receive, send)


def check(caller: Caller, *scopes: Scope) -> None:
    """Raise Forbidden unless the caller has one of the scopes."""
    if not any(caller.may(scope) for scope in scopes):
        raise Forbidden(f"the key lacks the scope: use a key with the scope {' or '.join(scopes)}")


@dataclass(frozen=True)
class Requirement:
    """Route dependency that yields the caller and requires one of the scopes.

    Routes check it before they read the body, see `service.api.bodies`.
    """

    scopes: tuple[Scope, ...]
    whole_tenant: bool

    async def __call__(self, request: Request) -> Caller:
        """Return the caller. Raise Forbidden."""
        caller: Caller = replace(request.state.caller, request_id=request.state.request_id)
        check(caller, *self.scopes)
        if self.whole_tenant and caller.dataset_id is not None:
            raise Forbidden("the key is bound to one dataset: use a key for the whole tenant")
        return caller


def require(*scopes: Scope, whole_tenant: bool = False) -> Requirement:
    """Return a route dependency that yields the caller and requires one of the scopes.

    With `whole_tenant`, keys that are bound to one dataset are rejected.
    """
    return Requirement(scopes, whole_tenant)
