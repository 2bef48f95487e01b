"""The round specs that the vectors are made of: every mechanism over every encoding it goes with."""

from collections.abc import Iterator
from dataclasses import replace

from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.records.outside import count_outside
from sfumato.specs import (
    LATTICE,
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    Encoding,
    Feature,
    GridEncoding,
    LatticeEncoding,
    NearestCentroidEncoding,
    Participation,
    PhaseEncoding,
    Place,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
    bin_feature,
    circles_of,
)
from sfumato.specs.attributes import Categorical, Numeric

# Bounds with differences and quotients that are rounded, as in practice.
FEATURES = (
    Feature("lon", -180.0, 180.0, "degree"),
    Feature("lat", -59.7, 83.1, "degree"),
    Feature("age", 0.1, 0.7),
)
PERIODIC = (
    Feature("hour", 0.0, 24.0, "h", periodic=True),
    Feature("lat", -59.7, 83.1, "degree"),
    Feature("direction", -0.1, 6.183_185_307_179_586, "rad", periodic=True),
)
PLACES = (Place(58.0, 5.0, 71.2, 31.2), Place(-21.3, 176.9, -12.1, -177.7), Place(-59.7, -170.0, 83.1, 190.0), Place())
SCALAR_MECHANISMS = ("grr", "ss", "oue", "olh", "hr", "window")
EPSILONS = (NANO // 10, NANO, 2_718_281_828, 6 * NANO)  # in turn

CENTROIDS = ((0, 0, LATTICE - 1), (524_288, 524_288, 524_288), (1_000_000, 7, 1))
ENCODINGS: dict[str, Encoding] = {
    "grid": GridEncoding((5, 3)),
    "shifted_grid": ShiftedGridEncoding(n_features=2, cells=6, shifts=3),
    "tree_grid": TreeGridEncoding(2, (1, 2, 2, 2, 3, 3, 3, 3, 1, 1)),
    "phase": PhaseEncoding(weights=((1_024, 0, 0), (511, -733, 1_200), (-3, -5, -7)), phases=32),
    "nearest_centroid": NearestCentroidEncoding(CENTROIDS),
    "centroid_sign": CentroidSignEncoding(((0, 0, 9), (524_288, 524_287, 524_288), (LATTICE - 1, 7, 1), (5, 6, 7))),
}
PLAN = Categorical("plan", ["free", "pro", "\u00e9t\u00e9"], unknown="other", missing="category")
FORMING = replace(PLAN, use="cluster", weight=1.5)
REGION = Categorical("region", [f"r{place}" for place in range(14)], unknown="other", missing="category", use="cluster")
DEVICE = Categorical("device", ["old", "new"], use="cluster")
PHASES_WITH_CATEGORIES = PhaseEncoding(
    weights=((1_024, 0, 0), (511, -733, 1_200), (-3, -5, -7), (16_384, 1, -9)),
    phases=32,
    attributes=(FORMING, DEVICE, REGION),
    characters=((0, 0, 0), (4, 0, 0), (0, 1, 13), (3, 1, 15)),
)
INCOME = Numeric("income", [0, 0.1, 0.30000000000000004, 1e6], missing="category")
PROFILES: dict[str, Encoding] = {
    "profile": ProfileEncoding((PLAN, INCOME, bin_feature(FEATURES[0])), CENTROIDS),
    "profile of a map": ProfileEncoding((INCOME, PLAN), (), (5, 3), (0, 1, 4, 11), (1, 0, 2, 1)),
}
LATTICES = {
    "lattice": LatticeEncoding(n_features=3, steps=100),
    "lattice of one step": LatticeEncoding(n_features=1, steps=1),
    "fine lattice": LatticeEncoding(n_features=2, steps=1 << 16),
}


def round_specs() -> Iterator[tuple[str, RoundSpec]]:
    """A name and a spec: one for each mechanism over each encoding, and the widest and narrowest there are."""
    turn = 0
    for kind in SCALAR_MECHANISMS:
        for name, encoding in ENCODINGS.items():
            mechanism = mechanisms.design(kind, encoding.n_symbols, EPSILONS[turn % len(EPSILONS)])
            yield f"{kind} over {name}", _spec(encoding, mechanism)
            turn += 1
    for name, lattice in LATTICES.items():
        mechanism = DiscreteLaplaceMechanism.design(lattice.n_features, lattice.steps, EPSILONS[1 + turn % 3])
        yield f"discrete_laplace over {name}", _spec(lattice, mechanism)
        turn += 1
    wide = GridEncoding((1024, 1024))
    many = GridEncoding((4_096,))
    for kind, encoding in (("grr", wide), ("hr", wide), ("olh", many), ("ss", many), ("oue", many), ("window", many)):
        yield (
            f"{kind} over {encoding.n_symbols} cells",
            _spec(encoding, mechanisms.design(kind, encoding.n_symbols, NANO)),
        )
    for kind in SCALAR_MECHANISMS:
        two = GridEncoding((2,))
        yield f"{kind} over two cells", _spec(two, mechanisms.design(kind, 2, 32 * NANO if kind == "grr" else NANO))

    yield from _periodic()
    yield from _places()
    yield from _counting()
    yield from _profiles()
    yield from _categories()


def _profiles() -> Iterator[tuple[str, RoundSpec]]:
    """Rounds of profiles: every mechanism, and with records outside."""
    for name, encoding in PROFILES.items():
        for turn, kind in enumerate(SCALAR_MECHANISMS):
            mechanism = mechanisms.design(kind, encoding.n_symbols, EPSILONS[turn % len(EPSILONS)])
            yield f"{kind} over {name}", _spec(encoding, mechanism)
        outside = _spec(encoding, mechanisms.design("ss", encoding.n_symbols, NANO))
        yield f"ss over {name} with outside", count_outside(outside)
    circles = ProfileEncoding((PLAN,), (), (4, 2), (0, 3), (0, 1))
    spec = RoundSpec(PERIODIC[:2], circles, mechanisms.design("auto", circles.n_symbols, NANO))
    yield "profile of a map over hour", spec


def _categories() -> Iterator[tuple[str, RoundSpec]]:
    """Rounds of shifted grids and phases with categories in the symbol: every mechanism, and outside."""
    flat = ShiftedGridEncoding(2, 4, 3, attributes=(FORMING,))
    for turn, kind in enumerate(SCALAR_MECHANISMS):
        mechanism = mechanisms.design(kind, flat.n_symbols, EPSILONS[turn % len(EPSILONS)])
        yield f"{kind} over shifted_grid with categories", _spec(flat, mechanism)
    encoding = ShiftedGridEncoding(2, 4, 3, (0,), (FORMING,))
    spec = RoundSpec(PERIODIC[:2], encoding, mechanisms.design("auto", encoding.n_symbols, NANO))
    yield "shifted_grid with categories over hour with outside", count_outside(spec)
    waves = PHASES_WITH_CATEGORIES
    for turn, kind in enumerate(SCALAR_MECHANISMS):
        mechanism = mechanisms.design(kind, waves.phases, EPSILONS[turn % len(EPSILONS)])
        yield f"{kind} over phase with categories", _spec(waves, mechanism)
    window = mechanisms.design("window", waves.phases, NANO)
    yield "phase with categories with outside", count_outside(_spec(waves, window))
    fine = PhaseEncoding(((1_024, -2_048), (3_072, 511)), 1_024, (REGION,), ((15,), (7,)))
    spec = RoundSpec(PERIODIC[:2], fine, mechanisms.design("window", 1_024, NANO))
    yield "phase with many categories over hour with outside", count_outside(spec)


def _periodic() -> Iterator[tuple[str, RoundSpec]]:
    """Rounds over circles, alone and beside a plain feature."""
    for places, cells in (((0,), 8), ((0, 1), 5), ((1, 2), 4), ((0, 1, 2), 3)):
        features = tuple(PERIODIC[place] for place in places)
        encoding = ShiftedGridEncoding(len(places), cells, 4, circles=circles_of(features))
        spec = RoundSpec(features, encoding, mechanisms.design("auto", encoding.n_symbols, NANO))
        name = " and ".join(feature.name for feature in features)
        yield f"shifted_grid over {name}", spec
        yield f"shifted_grid over {name} with outside", count_outside(spec)
    encodings = {
        "grid": GridEncoding((8, 3, 5)),
        "phase": PhaseEncoding(weights=((1_024, 0, -2_048), (-3_072, -733, 0), (0, 511, 1_024)), phases=16),
    }
    for name, encoding in encodings.items():
        spec = RoundSpec(PERIODIC, encoding, mechanisms.design("auto", encoding.n_symbols, NANO))
        yield f"{name} over circles", spec
        yield f"{name} over circles with outside", count_outside(spec)


def _places() -> Iterator[tuple[str, RoundSpec]]:
    """Rounds over places: regions, one over the antimeridian, and whole turns of longitude."""
    for number, place in enumerate(PLACES, 1):
        encoding = ShiftedGridEncoding(2, 12, 5, circles=circles_of(place.features))
        spec = RoundSpec(place.features, encoding, mechanisms.design("auto", encoding.n_symbols, NANO))
        yield f"shifted_grid over place {number}", spec
        yield f"shifted_grid over place {number} with outside", count_outside(spec)
    fine = PhaseEncoding(weights=((16_384, 0), (0, 16_384), (-16_383, 16_381)), phases=1_024)
    yield "phase over place 1", RoundSpec(PLACES[0].features, fine, mechanisms.design("window", 1_024, NANO))
    lattice = LatticeEncoding(n_features=2, steps=1 << 16)
    noise = DiscreteLaplaceMechanism.design(2, lattice.steps, NANO)
    yield "discrete_laplace over place 2", RoundSpec(PLACES[1].features, lattice, noise)


def _counting() -> Iterator[tuple[str, RoundSpec]]:
    """Rounds that count records outside of the bounds: every encoding, and every mechanism over a grid."""
    kinds = {"grid": SCALAR_MECHANISMS[:-1], "phase": ("window", "grr")}
    for name, encoding in ENCODINGS.items():
        for turn, kind in enumerate(kinds.get(name, ("ss",))):
            mechanism = mechanisms.design(kind, encoding.n_symbols, EPSILONS[turn % len(EPSILONS)])
            yield f"{kind} over {name} with outside", count_outside(_spec(encoding, mechanism))
    for name, lattice in LATTICES.items():
        if lattice.steps > 1:
            mechanism = DiscreteLaplaceMechanism.design(lattice.n_features, lattice.steps, NANO)
            yield f"discrete_laplace over {name} with outside", count_outside(_spec(lattice, mechanism))
    many = GridEncoding((4_096,))
    yield "ss over 4096 cells with outside", count_outside(_spec(many, mechanisms.design("ss", 4_096, NANO)))


def _spec(encoding: Encoding, mechanism: mechanisms.Mechanism) -> RoundSpec:
    return RoundSpec(FEATURES[: encoding.n_features], encoding, mechanism, Participation())
