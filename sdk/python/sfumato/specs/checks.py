"""Checks that the specs' dataclasses make of themselves."""

import math
from numbers import Real
from typing import cast

from sfumato.errors import InvalidSpec


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSpec(message)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def finite(value: object, what: str) -> float:
    require(is_number(value), f"{what} must be a number")
    try:
        number = float(cast(Real, value))
    except OverflowError:
        number = math.inf
    require(math.isfinite(number), f"{what} must be finite")
    return number
