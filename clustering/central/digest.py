"""What a question to the curator was made of, in few letters: two questions are the same if their digests are."""

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

DIGITS = 32


def digest_of(*parts: Any) -> str:
    """A digest of public values: numbers, texts, arrays, and tuples, lists and dataclasses of such.

    Of a dataclass, the fields that are compared.

    Raises
    ------
    TypeError
        Anything else, whose parts are not known.
    """
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()[:DIGITS]


def _feed(digest: Any, part: Any) -> None:
    """Every part with its kind and length before it, so that no two lists of parts read alike."""
    if isinstance(part, np.ndarray):
        digest.update(f"array {part.dtype.str} {part.shape};".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    elif is_dataclass(part):
        compared = [field.name for field in fields(part) if field.compare]
        digest.update(f"{type(part).__name__} {len(compared)};".encode())
        for name in compared:
            _feed(digest, getattr(part, name))
    elif isinstance(part, tuple | list):
        digest.update(f"items {len(part)};".encode())
        for item in part:
            _feed(digest, item)
    elif isinstance(part, int | float | str | None):
        said = repr(part).encode()
        digest.update(f"{type(part).__name__} {len(said)};".encode() + said)
    else:
        raise TypeError(f"a {type(part).__name__} is no part of a question")
