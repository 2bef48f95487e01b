"""Numbers of numpy, pandas and pyarrow as numbers of Python. No such package is imported."""

from decimal import Decimal
from numbers import Integral, Real
from typing import Any


def to_plain(value: Any) -> Any:
    """Return a number as int, float or Decimal, and any other value unchanged.

    Short floats are read as they print, so `numpy.float32(0.1)` is 0.1. Booleans are no numbers.
    """
    if isinstance(value, bool | int | float | Decimal | str):
        return value
    if hasattr(value, "as_py"):  # a scalar of pyarrow
        return to_plain(value.as_py())
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a scalar or an array without axes of numpy
        kind = value.dtype.kind
        if kind in "iuf":
            return float(str(value)) if kind == "f" else int(value)
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def to_json(value: Any) -> Any:
    """Return a number as JSON has it. Raise TypeError for another value; this is a `default` of `json.dumps`."""
    plain = to_plain(value)
    if isinstance(plain, Decimal):
        return int(plain) if plain == plain.to_integral_value() else float(plain)
    if plain is value:
        raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")
    return plain
