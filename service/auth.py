"""Who asks: a bearer key, found by its SHA-256, and what its scopes let it do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fastapi import Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from models import tenant
from models.db import Database
from models.tenant import Caller, Scope
from service.limits import RateLimits
from service.middleware import header
from service.problems import Forbidden, Unauthenticated

HOLD_SECONDS = 1.0  # so long a revoked key may still be taken, from when it was looked up
_MAX_HELD = 10_000
_MAX_HEADER_BYTES = 200
_BEARER = b"Bearer "  # as nearly everybody writes it

documented_key = HTTPBearer(
    auto_error=False, scheme_name="key", description="A key of the tenant's: `Authorization: Bearer sfk_...`."
)


class KeyCache:
    """Live keys, looked up in the database at most once a second each.

    Unknown keys are not held: there is no end to them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: dict[bytes, tuple[Caller, float]] = {}
        self._asked: dict[bytes, asyncio.Task[Caller | None]] = {}

    async def caller(self, authorization: bytes | None, *, known_only: bool = False) -> Caller:
        """Who a header's key belongs to; raises Unauthenticated.

        Parameters
        ----------
        authorization : bytes or None
        known_only : bool
            Whether a key that was not live here a moment ago is refused without being looked up.
        """
        secret_hash = tenant.hash_secret(_secret(authorization))
        held = self._held.get(secret_hash)
        if held is None and known_only:
            raise Unauthenticated("this key is unknown, expired or revoked")
        found = held[0] if held and held[1] > time.monotonic() else await self._ask(secret_hash)
        if found is None or self._is_over(found):
            raise Unauthenticated("this key is unknown, expired or revoked")
        return found

    def held(self, authorization: bytes | None) -> Caller | None:
        """Who a header's key belongs to, if that need not be looked up and the header is written as it mostly is."""
        if authorization is None or not authorization.startswith(_BEARER) or len(authorization) > _MAX_HEADER_BYTES:
            return None
        held = self._held.get(tenant.hash_secret(authorization[len(_BEARER) :]))
        return held[0] if held and held[1] > time.monotonic() and not self._is_over(held[0]) else None

    def _is_over(self, found: Caller) -> bool:
        return found.expires_at is not None and found.expires_at <= self._database.clock()

    async def _ask(self, secret_hash: bytes) -> Caller | None:
        """One look-up, however many requests wait for it."""
        task = self._asked.get(secret_hash)
        if task is None:
            until = time.monotonic() + HOLD_SECONDS  # however long the look-up takes
            task = asyncio.create_task(run_in_threadpool(self._look_up, secret_hash))
            self._asked[secret_hash] = task
            task.add_done_callback(lambda done: self._answered(secret_hash, done, until))
        return await asyncio.shield(task)

    def _answered(self, secret_hash: bytes, done: "asyncio.Task[Caller | None]", until: float) -> None:
        del self._asked[secret_hash]
        if done.cancelled() or done.exception() is not None:
            return
        if (found := done.result()) is None:
            self._held.pop(secret_hash, None)
            return
        if len(self._held) >= _MAX_HELD:
            self._held.clear()
        self._held[secret_hash] = (found, until)

    def _look_up(self, secret_hash: bytes) -> Caller | None:
        with self._database.reading() as session:
            return tenant.authenticate(session, secret_hash, now=self._database.clock())

    def forget(self) -> None:
        """A key was revoked: look everything up anew."""
        self._held = {secret_hash: (caller, 0.0) for secret_hash, (caller, _) in self._held.items()}


def _secret(authorization: bytes | None) -> str:
    if authorization is None or len(authorization) > _MAX_HEADER_BYTES:
        raise Unauthenticated("send `Authorization: Bearer <key>`")
    scheme, _, secret = authorization.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("send `Authorization: Bearer <key>`")
    return secret.strip()


class Authentication:
    """Pure ASGI: no request below `/v1` gets on without a live key, or too often, before its body is read."""

    def __init__(self, app: ASGIApp, *, keys: KeyCache, limits: RateLimits) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """One request; its `state` gets the caller."""
        if scope["type"] == "http":
            limits = self._limits
            if limits.per_address is not None:
                await limits.of_address(scope)
            if scope["path"].startswith("/v1"):
                try:
                    caller = await self._keys.caller(
                        header(scope, b"authorization"), known_only=limits.is_shut_out(scope)
                    )
                except Unauthenticated:
                    await limits.of_failure(scope)
                    raise
                scope["state"]["caller"] = caller
                policy = limits.policy_of(scope, caller)
                if policy is not None:
                    await limits.of_key(scope, policy, caller)
        await self._app(scope, receive, send)


def check(caller: Caller, *scopes: Scope) -> None:
    """Raise Forbidden unless the key has one of the scopes."""
    if not any(caller.may(scope) for scope in scopes):
        raise Forbidden(f"this needs a key with the scope {' or '.join(scopes)}")


def require(*scopes: Scope, whole_tenant: bool = False) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, if the key has one of the scopes.

    `whole_tenant` refuses keys that are bound to one dataset.
    """

    async def caller(request: Request) -> Caller:
        asks: Caller = replace(request.state.caller, request_id=request.state.request_id)
        check(asks, *scopes)
        if whole_tenant and asks.dataset_id is not None:
            raise Forbidden("this needs a key that is not bound to one dataset")
        return asks

    return caller
