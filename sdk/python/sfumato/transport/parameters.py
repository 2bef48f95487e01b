"""Checks of query parameters that the service and the shuffler share."""

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from sfumato.names import nearest

MAX_PARAMETERS = 100

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9.\[\]-]{0,39}")


def printable_name(name: str) -> str:
    """Return the name of a parameter for a message. A name that is no identifier may be a value, and is replaced."""
    return name if _NAME.fullmatch(name) else "?"


def explain_unknown(name: str, known: Collection[str]) -> str:
    """Return the message about an unknown parameter: the nearest known one, and all known ones."""
    if not known:
        return "unknown parameter: remove it, because this operation has no parameters"
    listed = ", ".join(f"`{each}`" for each in known)
    return f"unknown parameter: use `{nearest(name, known)}`, or another one of {listed}"


def query_errors(
    query_string: bytes, known: Collection[str], repeatable: Collection[str] = (), *, allow_empty: bool = False
) -> list[dict[str, str]]:
    """Return the errors of a query: unknown, repeated and empty parameters.

    Parameters
    ----------
    query_string : bytes
        Query of the request as sent, percent-encoded.
    known : collection of str
        Parameters of the operation.
    repeatable : collection of str
        Parameters that may have several values.
    allow_empty : bool
        Accept empty values, which browsers send for empty fields of a form.

    Returns
    -------
    list of dict
        Members `parameter` and `message`. A value is never repeated.
    """
    try:
        text = query_string.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
    except ValueError:
        message = f"the query is unreadable: send at most {MAX_PARAMETERS} parameters, percent-encoded in UTF-8"
        return [{"parameter": "", "message": message}]
    errors: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in pairs:
        if name not in known:
            errors.setdefault(printable_name(name), explain_unknown(name, known))
        elif name in seen and name not in repeatable:
            errors.setdefault(name, "the parameter occurs several times: send it once")
        elif not value.strip() and not allow_empty:
            errors.setdefault(name, "the parameter has no value: give it one, or remove it")
        seen.add(name)
    return [{"parameter": name, "message": message} for name, message in errors.items()]
