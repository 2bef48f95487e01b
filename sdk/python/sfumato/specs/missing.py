"""Texts that mean a missing value, as pandas, R, databases and spreadsheets write them."""

import re

_WORDS = frozenset(
    (
        *("null", "nil", "none", "nan", "na", "n/a", "n.a.", "nat", "missing", "undefined", "nothing", "empty"),
        *("blank", "unset", "na_integer_", "na_real_", "na_character_", "na_complex_"),
    )
)
_PHRASES = frozenset({"not set", "not provided", "not available", "not applicable"})
_SIGNS = frozenset({"", ".", "-", "--", "---", "?", "\\n", "#n/a n/a", "#na", "\N{EN DASH}", "\N{EM DASH}"})
_SPREADSHEET = frozenset(f"#{each}" for each in ("n/a", "null!", "value!", "ref!", "name?", "num!", "div/0!", "spill!"))
_NIL_UUID = "00000000-0000-0000-0000-000000000000"  # the advertising id of a device that opted out
MISSING_INTEGERS = (-(2**63), -(2**31))  # NaN as int64 in numpy, NA as integer in R
_MARKERS = _WORDS | _PHRASES | _SIGNS | _SPREADSHEET | {_NIL_UUID} | {str(each) for each in MISSING_INTEGERS}
_NAN = re.compile(r"[-+]?(nan(\([a-z0-9_]*\))?|1\.#(ind|qnan|snan|nan)0*)")
_BRACKETS = {"(": ")", "[": "]", "<": ">", "{": "}"}


def is_missing_text(text: str) -> bool:
    r"""Return whether a text means a missing value, such as `NaN`, `<NA>`, `\N`, `(null)`, `#N/A` or an empty text.

    Case and surrounding white space do not matter.
    """
    folded = " ".join(text.split()).casefold()
    if len(folded) > 2 and _BRACKETS.get(folded[0]) == folded[-1]:
        inner = folded[1:-1].strip()
        return inner in _WORDS or inner in _PHRASES
    return folded in _MARKERS or _NAN.fullmatch(folded) is not None
