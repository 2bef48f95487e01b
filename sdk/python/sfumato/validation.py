"""Validation of specifications, and declarations of the parameters of algorithms and mechanisms.

A parameter is declared once, as a dataclass field made by `parameter`. The declaration feeds the
validation here, the service's schemas, the OpenAPI document, the console's form and the tables of
docs/algorithms.md.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from decimal import Decimal
from functools import cache
from numbers import Real
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin
from unicodedata import is_normalized

from sfumato.errors import InvalidSpec
from sfumato.plain import to_plain

# Names and units contain no control characters, no characters without a glyph, and no space but the common one.
_UNSEEN = (
    r"\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
)
MAX_NAME = 64  # characters of a text parameter
MAX_TEXT_BYTES = 64
MAX_NAMES = 128  # names in a list

NAME_PATTERN, UNIT_PATTERN = rf"^[^{_UNSEEN}]+$", rf"^[^{_UNSEEN}]*$"


def require(condition: bool, message: str) -> None:
    """Raise InvalidSpec with the message unless the condition holds."""
    if not condition:
        raise InvalidSpec(message)


def require_text(text: object, what: str) -> None:
    """Raise InvalidSpec with the text's description unless it is a text to show, of 1 to 64 bytes in UTF-8."""
    require(
        isinstance(text, str)
        and 0 < len(text.encode("utf-8", "replace")) <= MAX_TEXT_BYTES
        and text.isprintable()
        and text == text.strip()
        and is_normalized("NFC", text),
        f"{what} must have 1 to {MAX_TEXT_BYTES} bytes of printable text in Unicode's form NFC, without outer spaces",
    )


def is_int(value: object) -> bool:
    """Return whether a value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_int(value: object, lowest: int, highest: int, name: str) -> None:
    """Raise InvalidSpec with the name unless the value is an integer in the inclusive range."""
    is_valid = isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
    require(is_valid, f"{name} must be an integer from {lowest} to {highest}, not {show(value)}")


def require_at_least(value: float, least: int, name: str) -> None:
    """Raise InvalidSpec with the name unless the number is at least `least`."""
    require(value >= least, f"{name} must be at least {least}, not {show(value)}")


def require_share(value: float, name: str) -> None:
    """Raise InvalidSpec with the name unless the number is in (0, 1]."""
    require(0 < value <= 1, f"{name} must be more than 0 and at most 1, not {show(value)}")


def show(value: object) -> str:
    """Return a value of a specification for a message: a number as it prints, anything else by its type."""
    return str(value) if is_number(value) else f"a value of type {type(value).__name__}"


def times(number: int) -> str:
    """Return a number of occurrences as words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def is_number(value: object) -> bool:
    """Return whether a value is a real number and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def to_finite(value: object, name: str) -> float:
    """Return a value as a finite float. Raise InvalidSpec with its name if it is not one."""
    value = to_plain(value)
    require(is_number(value) or isinstance(value, Decimal), f"{name} must be a number")
    try:
        number = float(cast(Real, value))
    except OverflowError:
        number = math.inf
    require(math.isfinite(number), f"{name} must be finite")
    return number


# ---- declared parameters ----


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of a parameter.

    Attributes
    ----------
    description : str
        Sentences that are readable alone. The range is not part of them.
    kind : type
        int, float, bool, str or tuple (a list of names), from the annotation of the dataclass field.
    is_optional : bool
        Whether the parameter may be None, from the annotation.
    minimum, maximum : float, optional
        Inclusive range.
    choices : tuple of str
        The allowed words, from the annotation.
    unit : str
        Unit of the values; empty for counts.
    automatic : str
        Meaning of None as a noun phrase; empty if None is not allowed.
    check : callable, optional
        Function that raises InvalidSpec for values in the range that are invalid.
    example : object
        Value in the example of the OpenAPI document; None leaves the parameter out.
    is_word : bool
        Whether JSON has the integer as a decimal string, because it may have 64 bits.
    pattern : str
        Regular expression of a text.
    label : str
        Name of a field in the console; by default the name of the parameter.
    is_object : bool
        Whether the value is an object or a list of objects, which validate themselves.
    replaced_by : str
        The parameter that may be given instead and determines this one; empty if there is none.
    """

    description: str
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    automatic: str = ""
    check: Callable[[Any], object] | None = None
    example: Any = None
    is_word: bool = False
    replaced_by: str = ""
    pattern: str = ""
    label: str = ""
    is_object: bool = False
    kind: type = float
    is_optional: bool = False
    choices: tuple[str, ...] = ()

    @property
    def range_text(self) -> str:
        """Return the allowed values as a phrase, or an empty string for a boolean."""
        if self.choices:
            return ", ".join(self.choices)
        if self.minimum is None or self.maximum is None:
            return ""
        return f"{_format_number(self.minimum)} to {_format_number(self.maximum)}"

    def validate(self, name: str, value: object) -> None:
        """Raise InvalidSpec unless the value is allowed."""
        if self.is_object or (value is None and self.is_optional):
            return
        if self.choices:
            require(isinstance(value, str) and value in self.choices, f"{name} must be one of {self.range_text}")
        elif self.kind is str:
            require(isinstance(value, str) and 0 < len(value) <= MAX_NAME, f"{name} must be a text")
            is_like = re.fullmatch(self.pattern, cast(str, value)) if self.pattern else True
            like = f"an id such as {self.example}" if self.example else "a text of visible characters"
            require(bool(is_like), f"{name} must be {like}")
        elif self.kind is tuple:
            self._validate_names(name, value)
        elif self.kind is bool:
            require(isinstance(value, bool), f"{name} must be true or false")
        elif self.check is not None:
            require(is_number(value), f"{name} must be a number")  # `check` alone would accept decimal strings
            self.check(value)
        else:
            require(self.kind is not int or is_int(value), f"{name} must be an integer")
            number = cast(int, value) if is_int(value) else to_finite(value, name)  # floats merge large integers
            if self.minimum is not None and self.maximum is not None:
                require(self.minimum <= number <= self.maximum, f"{name} must lie in the range {self.range_text}")

    def _validate_names(self, name: str, value: object) -> None:
        names = value if isinstance(value, tuple) else ()
        require(
            0 < len(names) <= int(self.maximum or MAX_NAMES)
            and all(isinstance(each, str) and 0 < len(each) <= MAX_NAME for each in names),
            f"{name} must be a list of 1 to {int(self.maximum or MAX_NAMES)} names",
        )
        require(len(set(names)) == len(names), f"{name} must not contain a name twice")


def parameter(
    description: str,
    *,
    default: Any = MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str = "",
    automatic: str = "",
    check: Callable[[Any], object] | None = None,
    example: Any = None,
    is_word: bool = False,
    replaced_by: str = "",
    pattern: str = "",
    label: str = "",
    is_object: bool = False,
) -> Any:
    """Return a dataclass field that declares a parameter; see `Parameter`.

    With `automatic` or `replaced_by` the default is None.
    """
    declaration = Parameter(
        description, minimum, maximum, unit, automatic, check, example, is_word, replaced_by, pattern, label, is_object
    )
    return field(default=None if automatic or replaced_by else default, metadata={"parameter": declaration})


def parameters_of(declared: Any) -> Mapping[str, Parameter]:
    """Return the declared parameters of an algorithm or a mechanism by name, in their order."""
    return _read_parameters(declared)


@cache
def _read_parameters(declared: Any) -> Mapping[str, Parameter]:
    found = {}
    for each in fields(declared):
        options = get_args(each.type)
        is_optional = NoneType in options
        annotation = next(option for option in options if option is not NoneType) if is_optional else each.type
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        found[each.name] = replace(
            each.metadata["parameter"],
            kind=str if choices else cast(type, get_origin(annotation) or annotation),
            is_optional=is_optional,
            choices=choices,
        )
    return found


def _format_number(number: float) -> str:
    if number == int(number):
        return str(int(number))
    return f"{number:.6f}".rstrip("0") if number >= 1e-6 else f"{number:g}"
