"""Validators of answers: `ETag`, and what `If-Match` and `If-None-Match` say of it."""

import hashlib


def etag(body: bytes) -> str:
    """A strong validator of an answer's bytes."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def is_named(tag: str, header: str) -> bool:
    """Whether `If-Match` or `If-None-Match` names the tag (RFC 9110; weak ones as if they were strong)."""
    named = [one.strip().removeprefix("W/") for one in header.split(",")]
    return tag in named or "*" in named
