"""Names that a caller chooses among known ones: their positions, and the nearest known name to an unknown one."""

from collections.abc import Collection, Sequence
from difflib import SequenceMatcher

from sfumato.errors import InvalidSpec


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that resembles `name` most, or None if no name is known."""
    return max(known, key=lambda each: SequenceMatcher(None, name.lower(), each.lower()).ratio(), default=None)


def find_positions(names: Sequence[str], known: Sequence[str], what: str) -> tuple[int, ...]:
    """Return the positions of chosen names among the known ones, ascending. The order of the names does not matter.

    Parameters
    ----------
    names : sequence of str
        Names in any order, at least one.
    known : sequence of str
        Unique names, public.
    what : str
        Noun for the names in messages, in the singular.

    Returns
    -------
    tuple of int

    Raises
    ------
    InvalidSpec
        The sequence is empty, or a name is repeated or unknown. The message has the nearest known name.

    Examples
    --------
    >>> from sfumato.names import find_positions
    >>> find_positions(["north", "east"], ["east", "income", "north"], "feature")
    (0, 2)
    """
    if not names:
        raise InvalidSpec(f"the list of names is empty: name at least one {what}, or leave the list out")
    places = {name: place for place, name in enumerate(known)}
    found: set[int] = set()
    for name in names:
        if name not in places:
            raise InvalidSpec(f"there is no {what} {name!r}: use {nearest(name, known)!r}, or another name")
        if places[name] in found:
            raise InvalidSpec(f"the {what} {name!r} is named twice: name it once")
        found.add(places[name])
    return tuple(sorted(found))


def list_texts(given: Sequence[str], name: str) -> list[str]:
    """Return a list of texts. Raise InvalidSpec for a single text, or for a value that is not text."""
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise InvalidSpec(f"{name} must be a list of names, such as ['east', 'north']")
    return [str(each) for each in given]
