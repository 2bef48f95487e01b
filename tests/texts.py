"""What stands in a text that also holds ids, hashes and times, in which any few digits turn up by chance."""

import re

_ALONE = re.compile(r"(?<![\w.])\d+(?!\w|\.\d)")


def numbers_in(text: str) -> set[int]:
    """The whole numbers that stand by themselves: no part of an id, a hash, a time of day or a fraction."""
    return {int(found) for found in _ALONE.findall(text)}
