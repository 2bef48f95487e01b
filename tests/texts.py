"""Search for numbers in texts that also contain ids, hashes and times with random digits."""

import re

_ALONE = re.compile(r"(?<![\w.])\d+(?!\w|\.\d)")


def numbers_in(text: str) -> set[int]:
    """Return the integers that are not part of an id, a hash, a time or a fraction."""
    return {int(found) for found in _ALONE.findall(text)}
