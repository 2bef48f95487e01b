"""What is published: features, encodings, mechanisms, round specs, algorithm parameters.

Frozen dataclasses without behaviour beyond checking themselves. `to_wire` and the
`*_from_wire` functions turn them into plain JSON values and back; 64-bit integers travel
as decimal strings, because JSON numbers stop at 2**53.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal, cast, get_args

from sfumato.accounting import DRAW_SPAN, parse_epsilon
from sfumato.errors import InvalidSpec

SPEC_VERSION = 1
MAX_FEATURES = 64
MAX_SYMBOLS = 1 << 20  # of any encoding
MAX_SUBSET_SYMBOLS = 4096  # subset selection and unary encoding send one bit a symbol
MAX_HASH_RANGE = 1 << 16  # of local hashing
MAX_CLUSTERS = 256
MAX_TREE_CELLS = 1 << 16
MAX_TREE_BITS = 48  # of a cell's place: exact in a double, so that every device can compute it


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSpec(message)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _finite(value: object, what: str) -> float:
    _require(_is_number(value), f"{what} must be a number")
    try:
        number = float(cast(Real, value))
    except OverflowError:
        number = math.inf
    _require(math.isfinite(number), f"{what} must be finite")
    return number


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of a record, with its public bounds in its own unit."""

    name: str
    lower: float
    upper: float
    unit: str = ""

    def __post_init__(self) -> None:
        _require(
            isinstance(self.name, str) and 0 < len(self.name) <= 64, "a feature needs a name of 1 to 64 characters"
        )
        _require(isinstance(self.unit, str) and len(self.unit) <= 64, f"{self.name}: a unit has at most 64 characters")
        for bound in ("lower", "upper"):  # floats from here on, so that every path scales with the same numbers
            object.__setattr__(self, bound, _finite(getattr(self, bound), f"{self.name}: {bound}"))
        _require(self.lower < self.upper, f"{self.name}: lower must lie below upper")
        _require(math.isfinite(self.upper - self.lower), f"{self.name}: bounds lie too far apart")


@dataclass(frozen=True, slots=True)
class Draw:
    """The interval [lo, hi) of a device's secret 64-bit draw that answers a round."""

    lo: int = 0
    hi: int = DRAW_SPAN

    def __post_init__(self) -> None:
        _require(_is_int(self.lo) and _is_int(self.hi), "a draw interval has integer ends")
        _require(0 <= self.lo < self.hi <= DRAW_SPAN, "a draw interval needs 0 <= lo < hi <= 2**64")

    @classmethod
    def between(cls, lo: float, hi: float) -> "Draw":
        """The interval that holds the fractions [lo, hi) of all draws."""
        return cls(math.floor(lo * DRAW_SPAN), math.floor(hi * DRAW_SPAN))

    def holds(self, draw: int) -> bool:
        """Whether a device with this draw answers."""
        return self.lo <= draw < self.hi


# ---- encodings: how a point becomes a symbol ----


@dataclass(frozen=True, slots=True)
class GridEncoding:
    """A plain grid: the symbol is the cell, row-major, the first feature slowest."""

    type: ClassVar[str] = "grid"
    cells: tuple[int, ...]  # per feature

    def __post_init__(self) -> None:
        _require(0 < len(self.cells) <= MAX_FEATURES, "a grid has 1 to 64 features")
        _require(all(_is_int(c) and c >= 1 for c in self.cells), "cells per feature are positive integers")
        _require(2 <= self.n_symbols <= MAX_SYMBOLS, f"a grid has 2 to {MAX_SYMBOLS} cells")

    @property
    def n_features(self) -> int:
        return len(self.cells)

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return math.prod(self.cells)


@dataclass(frozen=True, slots=True)
class ShiftedGridEncoding:
    """A coarse grid under one of `shifts` per feature public shifts (STATISTICS 3.2).

    The fine grid has cells * shifts cells a feature. The slot is the shift, row-major;
    the symbol is the coarse cell of the shifted fine cell, row-major.
    """

    type: ClassVar[str] = "shifted_grid"
    n_features: int
    cells: int  # s, coarse cells per feature
    shifts: int  # w, shifts per feature

    def __post_init__(self) -> None:
        _require(_is_int(self.n_features) and 1 <= self.n_features <= 8, "a shifted grid has 1 to 8 features")
        _require(_is_int(self.cells) and 1 <= self.cells <= 4096, "cells per feature lie in 1..4096")
        _require(_is_int(self.shifts) and 1 <= self.shifts <= 64, "shifts per feature lie in 1..64")
        _require(self.n_symbols <= MAX_SYMBOLS, f"a shifted grid has at most {MAX_SYMBOLS} symbols")
        _require(self.n_slots <= MAX_SYMBOLS, f"a shifted grid has at most {MAX_SYMBOLS} slots")

    @property
    def n_slots(self) -> int:
        return int(self.shifts**self.n_features)

    @property
    def n_symbols(self) -> int:
        return int((self.cells + 1) ** self.n_features)

    @property
    def fine_cells(self) -> int:
        """G, fine cells per feature."""
        return self.cells * self.shifts


@dataclass(frozen=True, slots=True)
class TreeGridEncoding:
    """Dyadic cells of different levels that tile the box: the symbol is the cell's place in the list.

    A cell of level l has sides of 2**-l of every feature's range. The cells are listed as a
    tree is walked: a box of level l is a cell, or its 2**n_features halves of level l + 1
    follow one another, the first feature's half slowest (Z-order). So the levels alone say
    where every cell lies.
    """

    type: ClassVar[str] = "tree_grid"
    n_features: int
    levels: tuple[int, ...]  # of every cell

    def __post_init__(self) -> None:
        _require(_is_int(self.n_features) and 1 <= self.n_features <= 8, "a tree grid has 1 to 8 features")
        _require(
            isinstance(self.levels, tuple) and 2 <= len(self.levels) <= MAX_TREE_CELLS,
            f"a tree grid has 2 to {MAX_TREE_CELLS} cells",
        )
        _require(
            all(_is_int(level) and level >= 0 and level * self.n_features <= MAX_TREE_BITS for level in self.levels),
            f"levels are integers from 0, levels times features at most {MAX_TREE_BITS}",
        )
        depth = self.depth
        place = 0  # of the cell's first finest box, along the walk
        for level in self.levels:
            size = 1 << (depth - level) * self.n_features
            _require(place % size == 0, "these cells do not tile the box: one lies across another's bounds")
            place += size
        _require(place == 1 << depth * self.n_features, "these cells do not tile the box")

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return len(self.levels)

    @property
    def depth(self) -> int:
        """The finest level."""
        return max(self.levels)


Encoding = GridEncoding | ShiftedGridEncoding | TreeGridEncoding


# ---- mechanisms: how a symbol is perturbed ----


@dataclass(frozen=True, slots=True)
class GrrMechanism:
    """k-ary randomised response: keeps the symbol where a word < keep_threshold."""

    type: ClassVar[str] = "grr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        _require(_is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"grr has 2 to {MAX_SYMBOLS} symbols")
        _require(
            _is_int(self.keep_threshold) and 0 < self.keep_threshold <= DRAW_SPAN, "keep_threshold lies in 1..2**64"
        )


@dataclass(frozen=True, slots=True)
class SsMechanism:
    """Subset selection: a subset that holds the symbol where a word < hold_threshold."""

    type: ClassVar[str] = "ss"
    n_symbols: int  # k
    subset_size: int  # d
    hold_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        _require(
            _is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SUBSET_SYMBOLS,
            f"ss has 2 to {MAX_SUBSET_SYMBOLS} symbols",
        )
        _require(_is_int(self.subset_size) and 1 <= self.subset_size < self.n_symbols, "subset_size lies in 1..k-1")
        _require(
            _is_int(self.hold_threshold) and 0 < self.hold_threshold < DRAW_SPAN, "hold_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class OueMechanism:
    """Optimised unary encoding: k bits, the own one set by a fair coin, another where a word < other_threshold."""

    type: ClassVar[str] = "oue"
    n_symbols: int  # k
    other_threshold: int  # T = ceil(q 2^64)

    def __post_init__(self) -> None:
        _require(
            _is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SUBSET_SYMBOLS,
            f"oue has 2 to {MAX_SUBSET_SYMBOLS} symbols",
        )
        _require(
            _is_int(self.other_threshold) and 0 < self.other_threshold < DRAW_SPAN, "other_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class OlhMechanism:
    """Local hashing: a public seed, and the hashed symbol, kept where a word < keep_threshold."""

    type: ClassVar[str] = "olh"
    n_symbols: int  # k
    hash_range: int  # g
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        _require(_is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"olh has 2 to {MAX_SYMBOLS} symbols")
        _require(
            _is_int(self.hash_range) and 2 <= self.hash_range <= MAX_HASH_RANGE,
            f"hash_range lies in 2..{MAX_HASH_RANGE}",
        )
        _require(
            _is_int(self.keep_threshold) and 0 < self.keep_threshold < DRAW_SPAN, "keep_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class HrMechanism:
    """Hadamard response: the sign of a public random Walsh coefficient, kept where a word < keep_threshold."""

    type: ClassVar[str] = "hr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        _require(_is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"hr has 2 to {MAX_SYMBOLS} symbols")
        _require(
            _is_int(self.keep_threshold) and 0 < self.keep_threshold < DRAW_SPAN, "keep_threshold lies in 1..2**64-1"
        )

    @property
    def n_coefficients(self) -> int:
        """K, the least power of two above k."""
        return 1 << self.n_symbols.bit_length()


Mechanism = GrrMechanism | SsMechanism | OueMechanism | OlhMechanism | HrMechanism


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """Everything a device needs to answer a round; the same bytes for every device."""

    features: tuple[Feature, ...]
    encoding: Encoding
    mechanism: Mechanism
    draw: Draw = Draw()

    def __post_init__(self) -> None:
        _require(len(self.features) == self.encoding.n_features, "the encoding is for another number of features")
        _require(self.mechanism.n_symbols == self.encoding.n_symbols, "the mechanism is for another number of symbols")


# ---- algorithm parameters ----

Variant = Literal["sound", "paper"]  # of a method that was published: made sound, or as printed


@dataclass(frozen=True, slots=True)
class ShiftedGrid:
    """Parameters of `shifted_grid`: local, 1 to 3 features (STATISTICS 3.2).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    cells : int, optional
        s, coarse cells per feature; None chooses by the reports expected.
    shifts : int
        w, shifts per feature; the fine grid has cells * shifts cells a feature.
    length_scale : float
        Correlation length of the log density's prior, as a share of a feature's range.
    amplitude : float
        Standard deviation of the log density's prior.
    """

    type: ClassVar[str] = "shifted_grid"
    epsilon: float
    clusters: int | None = None
    cells: int | None = None
    shifts: int = 4
    length_scale: float = 0.06
    amplitude: float = 2.5

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _require(self.cells is None or (_is_int(self.cells) and 2 <= self.cells <= 64), "cells lies in 2..64")
        _require(_is_int(self.shifts) and 1 <= self.shifts <= 8, "shifts lies in 1..8")
        _require(0.005 <= _finite(self.length_scale, "length_scale") <= 1, "length_scale lies in [.005, 1]")
        _require(0.1 <= _finite(self.amplitude, "amplitude") <= 10, "amplitude lies in [.1, 10]")


@dataclass(frozen=True, slots=True)
class UniformGrid:
    """Parameters of `uniform_grid`: one plain grid, dense cells joined (paper 000, UGC, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None keeps every connected dense region.
    cells : int, optional
        Cells per feature; None takes the finest grid whose dense cells can be told from noise.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison.
    """

    type: ClassVar[str] = "uniform_grid"
    epsilon: float
    clusters: int | None = None
    cells: int | None = None
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        _require(self.cells is None or (_is_int(self.cells) and 2 <= self.cells <= 1024), "cells lies in 2..1024")


@dataclass(frozen=True, slots=True)
class AdaptiveGridIterative:
    """Parameters of `adaptive_grid_iterative`: cells split and merged by rounds (paper 000, AGC1, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    passes : int
        Rounds over the cells as adapted so far, 3..8.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison: two more rounds.
    """

    type: ClassVar[str] = "adaptive_grid_iterative"
    epsilon: float
    clusters: int | None = None
    passes: int = 3
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        _require(_is_int(self.passes) and 3 <= self.passes <= 8, "passes lies in 3..8")


@dataclass(frozen=True, slots=True)
class AdaptiveGridTree:
    """Parameters of `adaptive_grid_tree`: all levels of a grid tree at once (paper 000, AGC2, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    height : int, optional
        H, levels of the tree and rounds, 1..9; None takes the finest leaves whose dense cells can be told
        from noise.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison: two more rounds.
    """

    type: ClassVar[str] = "adaptive_grid_tree"
    epsilon: float
    clusters: int | None = None
    height: int | None = None
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        _require(self.height is None or (_is_int(self.height) and 1 <= self.height <= 9), "height lies in 1..9")


def _check_variant(variant: str) -> None:
    _require(isinstance(variant, str) and variant in get_args(Variant), "variant is sound or paper")


def _check_epsilon(epsilon: float) -> None:
    _require(_is_number(epsilon), "epsilon must be a number")  # on the wire it is never text
    parse_epsilon(epsilon)


def _check_clusters(clusters: int | None) -> None:
    _require(
        clusters is None or (_is_int(clusters) and 1 <= clusters <= MAX_CLUSTERS),
        f"clusters lies in 1..{MAX_CLUSTERS}, or is left out",
    )


Algorithm = ShiftedGrid | UniformGrid | AdaptiveGridIterative | AdaptiveGridTree

ENCODINGS: dict[str, type[Encoding]] = {c.type: c for c in (GridEncoding, ShiftedGridEncoding, TreeGridEncoding)}
MECHANISMS: dict[str, type[Mechanism]] = {
    c.type: c for c in (GrrMechanism, SsMechanism, OueMechanism, OlhMechanism, HrMechanism)
}
ALGORITHMS: dict[str, type[Algorithm]] = {
    c.type: c for c in (ShiftedGrid, UniformGrid, AdaptiveGridIterative, AdaptiveGridTree)
}

_WORD_FIELDS = {"lo", "hi", "keep_threshold", "hold_threshold", "other_threshold"}  # decimal strings on the wire


# ---- to and from the wire ----


def to_wire(spec: Any) -> dict[str, Any]:
    """A spec as plain JSON values: a tag `type` where it is one of a union."""
    out: dict[str, Any] = {}
    if hasattr(spec, "type"):
        out["type"] = spec.type
    if isinstance(spec, RoundSpec):
        out["version"] = SPEC_VERSION
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name == "features":
            value = [to_wire(feature) for feature in value]
        elif hasattr(value, "__dataclass_fields__"):
            value = to_wire(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif field.name in _WORD_FIELDS:
            value = str(value)
        out[field.name] = value
    return out


def _build(cls: type[Any], wire: object) -> Any:
    """Make `cls` from JSON values, refusing what it does not know."""
    _require(isinstance(wire, Mapping), f"{cls.__name__}: this is an object")
    wire = cast(Mapping[str, Any], wire)
    names = {field.name for field in fields(cls)}
    unknown = set(wire) - names
    _require(not unknown, f"{cls.__name__}: unknown {', '.join(sorted(map(str, unknown)))}")
    values: dict[str, Any] = {}
    for name in names & set(wire):
        value = wire[name]
        if name in _WORD_FIELDS:
            _require(
                isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20,
                f"{cls.__name__}: {name} is a decimal string",
            )
            value = int(value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    try:
        return cls(**values)
    except TypeError:
        raise InvalidSpec(f"{cls.__name__}: a field is missing or of the wrong type") from None


def _tagged(kinds: Mapping[str, type[Any]], what: str, wire: object) -> Any:
    _require(isinstance(wire, Mapping), f"the {what} is an object")
    wire = cast(Mapping[str, Any], wire)
    tag = wire.get("type")
    _require(isinstance(tag, str) and tag in kinds, f"unknown {what}; this version knows {', '.join(kinds)}")
    return _build(kinds[cast(str, tag)], {k: v for k, v in wire.items() if k != "type"})


def encoding_from_wire(wire: object) -> Encoding:
    """Read an encoding; raises InvalidSpec."""
    return cast(Encoding, _tagged(ENCODINGS, "encoding", wire))


def mechanism_from_wire(wire: object) -> Mechanism:
    """Read a mechanism; raises InvalidSpec."""
    return cast(Mechanism, _tagged(MECHANISMS, "mechanism", wire))


def algorithm_from_wire(wire: object) -> Algorithm:
    """Read an algorithm's parameters; raises InvalidSpec."""
    return cast(Algorithm, _tagged(ALGORITHMS, "algorithm", wire))


def features_from_wire(wire: object) -> tuple[Feature, ...]:
    """Read a list of features; raises InvalidSpec."""
    _require(isinstance(wire, list) and 0 < len(wire) <= MAX_FEATURES, "features is a list of 1 to 64")
    features = tuple(cast(Feature, _build(Feature, item)) for item in cast(list[object], wire))
    _require(len({feature.name for feature in features}) == len(features), "feature names differ from one another")
    return features


def round_spec_from_wire(wire: object) -> RoundSpec:
    """Read a round spec; raises InvalidSpec for one this version cannot answer."""
    _require(isinstance(wire, Mapping), "a round spec is an object")
    wire = cast(Mapping[str, Any], wire)
    version = wire.get("version")
    _require(
        _is_int(version) and version == SPEC_VERSION, f"this version answers round specs of version {SPEC_VERSION}"
    )
    parts = {"version", "features", "encoding", "mechanism", "draw"}
    _require(parts <= set(wire), "a round spec lacks a part")
    _require(set(wire) <= parts, f"RoundSpec: unknown {', '.join(sorted(map(str, set(wire) - parts)))}")
    return RoundSpec(
        features=features_from_wire(wire["features"]),
        encoding=encoding_from_wire(wire["encoding"]),
        mechanism=mechanism_from_wire(wire["mechanism"]),
        draw=cast(Draw, _build(Draw, wire["draw"])),
    )
