"""Hypothesis strategies for specs."""

from collections.abc import Sequence

from hypothesis import strategies as st

from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import (
    Encoding,
    Feature,
    GridEncoding,
    GrrMechanism,
    HrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    Participation,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    SsMechanism,
    UniformGrid,
    WindowMechanism,
)

GRID_KINDS = ("grr", "ss", "oue", "olh", "hr")  # mechanisms for the symbols of grids

bounds = st.floats(-1e300, 1e300, allow_subnormal=False)


@st.composite
def features(draw: st.DrawFn, n: int, circles: Sequence[int] = ()) -> tuple[Feature, ...]:
    names = draw(st.lists(st.text(min_size=1, max_size=64), min_size=n, max_size=n, unique=True))
    ends = [draw(st.tuples(bounds, bounds).filter(lambda e: e[0] != e[1])) for _ in range(n)]
    units = ["" if place in circles else draw(st.text(max_size=8)) for place in range(n)]
    return tuple(
        Feature(name, min(e), max(e), unit, periodic=place in circles)
        for place, (name, e, unit) in enumerate(zip(names, ends, units, strict=True))
    )


grids = st.lists(st.integers(1, 16), min_size=1, max_size=4).filter(lambda c: max(c) > 1).map(tuple).map(GridEncoding)


@st.composite
def shifted_grids(draw: st.DrawFn) -> ShiftedGridEncoding:
    n_features = draw(st.integers(1, 3))
    circles = draw(st.sets(st.integers(0, n_features - 1)))
    cells = draw(st.integers(2 if circles else 1, 14))
    return ShiftedGridEncoding(n_features, cells, draw(st.integers(1, 8)), tuple(sorted(circles)))


encodings: st.SearchStrategy[Encoding] = st.one_of(grids, shifted_grids())


@st.composite
def mechanisms(draw: st.DrawFn, n_symbols: int, kinds: Sequence[str] = GRID_KINDS) -> Mechanism:
    """Draw a mechanism with any threshold."""
    threshold = draw(st.integers(1, DRAW_SPAN - 1))
    kind = draw(st.sampled_from([kind for kind in kinds if n_symbols <= 4096 or kind not in ("ss", "oue")]))
    if kind in ("ss", "window"):
        design = SsMechanism if kind == "ss" else WindowMechanism
        return design(n_symbols, draw(st.integers(1, n_symbols - 1)), threshold)
    if kind == "olh":
        return OlhMechanism(n_symbols, draw(st.integers(2, 1 << 16)), threshold)
    return {"grr": GrrMechanism, "oue": OueMechanism, "hr": HrMechanism}[kind](n_symbols, threshold)


@st.composite
def participations(draw: st.DrawFn) -> Participation:
    lo, hi = sorted(draw(st.sets(st.integers(0, DRAW_SPAN), min_size=2, max_size=2)))
    return Participation(lo, hi)


@st.composite
def round_specs(draw: st.DrawFn) -> RoundSpec:
    encoding = draw(encodings)
    return RoundSpec(
        features=draw(features(encoding.n_features, getattr(encoding, "circles", ()))),
        encoding=encoding,
        mechanism=draw(mechanisms(encoding.n_symbols)),
        participation=draw(participations()),
    )


epsilons = st.integers(1000, 32 * 10**9).map(lambda nano: nano / 1e9)
clusters = st.none() | st.integers(1, 256)
algorithms = st.one_of(
    st.builds(
        ShiftedGrid,
        epsilon=epsilons,
        clusters=clusters,
        cells=st.none() | st.integers(2, 64),
        shifts=st.integers(1, 8),
        length_scale=st.floats(0.005, 1),
        amplitude=st.floats(0.1, 10),
    ),
    st.builds(UniformGrid, epsilon=epsilons, clusters=clusters, cells=st.none() | st.integers(2, 1024)),
)
