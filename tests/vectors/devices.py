"""Vectors of whole devices: the requests, decisions, memory and reports of each call, and the refused calls."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from sfumato import mechanisms
from sfumato.device.outcomes import RoundOutcome
from sfumato.device.store import MemoryStore
from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.records.outside import count_outside
from sfumato.specs import (
    Feature,
    GridEncoding,
    LatticeEncoding,
    Participation,
    PhaseEncoding,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    round_spec_from_wire,
    to_wire,
)
from sfumato.specs.attributes import Attribute, Numeric, attribute_to_wire
from tests.sfumato.scripted import ScriptedService
from tests.vectors.specs import FEATURES, FORMING, INCOME, PLACES, PLAN
from tests.vectors.words import PlannedEntropy

Json = dict[str, Any]
RECORD = [12.5, 48.2]
DECLARED: tuple[Attribute, ...] = (PLAN, INCOME)
PERSON = {"lon": 12.5, "lat": 48.2, "plan": "pro", "income": 0.2}
UNKNOWN = PERSON | {"plan": "none", "income": None}
PLACE = PLACES[1].features
AT = {"latitude": -17.7, "longitude": -181.5}
POSED = {
    "a value that is a place": AT,
    "a latitude beyond 90": AT | {"latitude": 90.5},
    "a longitude beyond 360": AT | {"longitude": 999},
}
HALF = DRAW_SPAN // 2
NOON = "2027-01-15T12:00:00"  # clock of the devices of most vectors, a Friday


def asked(
    round_id: str = "rnd_1",
    kind: str = "ss",
    epsilon_nano: int = NANO,
    participation: Participation | None = None,
    **changes: Any,
) -> Json:
    """An open round, as a service lists it."""
    encoding = GridEncoding((4, 4))
    spec = RoundSpec(
        FEATURES[:2], encoding, mechanisms.design(kind, 16, epsilon_nano), participation or Participation()
    )
    declared = spec.mechanism.epsilon_nano() / NANO
    listed = {"id": round_id, "collection_id": round_id, "index": 0, "epsilon": declared, "keep_reports": False}
    return listed | {"spec": to_wire(spec)} | changes


def counting(**changes: Any) -> Json:
    """An open round that counts records outside of the bounds."""
    spec = count_outside(round_spec_from_wire(asked()["spec"]))
    return asked(epsilon=spec.mechanism.epsilon_nano() / NANO, spec=to_wire(spec)) | changes


def places(listed: Json) -> Json:
    """The open round with the features of a place."""
    spec = round_spec_from_wire(listed["spec"])
    return listed | {"spec": to_wire(replace(spec, features=PLACE))}


def profile(round_id: str = "rnd_1", **changes: Any) -> Json:
    """An open round of a profile. `changes` are those of the plan."""
    described = (replace(PLAN, **changes), INCOME)
    encoding = ProfileEncoding(described, (), (5, 3), (0, 1, 4, 11), (1, 0, 2, 1))
    spec = count_outside(RoundSpec(FEATURES[:2], encoding, mechanisms.design("ss", encoding.n_symbols, NANO)))
    return asked(round_id, epsilon=spec.mechanism.epsilon_nano() / NANO, spec=to_wire(spec))


def categories(**changes: Any) -> Json:
    """An open round of a shifted grid with the category of the plan. `changes` are those of its encoding."""
    encoding = ShiftedGridEncoding(2, 4, 3, attributes=(FORMING,))
    spec = count_outside(RoundSpec(FEATURES[:2], encoding, mechanisms.design("ss", encoding.n_symbols, NANO)))
    listed = asked("rnd_1", epsilon=spec.mechanism.epsilon_nano() / NANO, spec=to_wire(spec))
    listed["spec"]["encoding"] |= changes
    return listed


def waves(**changes: Any) -> Json:
    """An open round of phases with the category of the plan. `changes` are those of its encoding."""
    encoding = PhaseEncoding(((900, -20), (-300, 1_200)), 16, (FORMING,), ((0,), (3,)))
    spec = count_outside(RoundSpec(FEATURES[:2], encoding, mechanisms.design("window", encoding.phases, NANO)))
    listed = asked("rnd_1", epsilon=spec.mechanism.epsilon_nano() / NANO, spec=to_wire(spec))
    listed["spec"]["encoding"] |= changes
    return listed


def device_vectors() -> list[Json]:
    """Devices that answer: each a list of calls."""
    inside, outside = (HALF - 1,), (HALF,)
    low, high = (
        asked("rnd_low", participation=Participation(0, HALF)),
        asked("rnd_high", participation=Participation(HALF, DRAW_SPAN)),
    )
    together = [each | {"collection_id": "rnd_low"} for each in (low, high)]
    by_name = {"lat": RECORD[1], "lon": RECORD[0]}
    return [
        _played("a round is answered", 2, [([asked()], RECORD, ())]),
        _played("a record by names", 2, [([asked()], by_name, ())]),
        _played("nothing is asked", 2, [([], RECORD, ())]),
        _played("a round is answered once", 2, [([asked()], RECORD, ()), ([asked()], [-100.0, 3.0], ())]),
        _played("the draw lies inside", 2, [([low], RECORD, inside)]),
        _played("the draw lies outside", 2, [([low], RECORD, outside)]),
        _played("outside its interval, the record is not read", 2, [([low], [1.0], outside)]),
        _played("one draw for a collection", 2, [(together, RECORD, inside)]),
        _played("a draw for each collection", 4, [([low, high], RECORD, inside)]),
        _played("the draw is kept", 2, [([together[0]], RECORD, outside), ([together[1]], RECORD, ())]),
        _played("two rounds add up", 2, [([asked("rnd_1"), asked("rnd_2", kind="hr")], RECORD, ())]),
        _played("the cap holds over calls", 1.5, [([asked("rnd_1")], RECORD, ()), ([asked("rnd_2")], RECORD, ())]),
        _played(
            "one is answered, one is over the cap", 1, [([asked("rnd_1"), asked("rnd_2", "hr", NANO)], RECORD, ())]
        ),
        _played("a round may declare more than it costs", 2, [([asked(epsilon=1.25)], RECORD, ())]),
        _played("a value outside the bounds is clipped", 2, [([asked()], [1e308, -1e308], ())]),
        _played("a record outside the bounds is counted", 2, [([counting()], [12.5, 134_000_000], ())]),
        _played("a record inside is not", 2, [([counting()], [180, 83.1], ())]),
        _played("a record outside is not sent again", 2, [([counting()], [500, 500], ()), ([counting()], RECORD, ())]),
        _played("kept reports are accepted", 2, [([asked(keep_reports=True)], RECORD, ())], accept_kept_reports=True),
        _played(
            "kept reports are refused, others are not", 2, [([asked(keep_reports=True), asked("rnd_2")], RECORD, ())]
        ),
        _played("a profile is answered", 4, [([profile()], PERSON, ())], attributes=DECLARED),
        _played("a profile with missing values is answered", 4, [([profile()], UNKNOWN, ())], attributes=DECLARED),
        _played("a profile outside the bounds", 4, [([profile()], PERSON | {"lat": 500}, ())], attributes=DECLARED),
        _played("other rounds ignore attributes", 4, [([asked(), profile("rnd_2")], PERSON, ())], attributes=DECLARED),
        _played("a category of a grid is answered", 4, [([categories()], PERSON, ())], attributes=DECLARED),
        _played(
            "a grid with categories outside the bounds",
            4,
            [([categories()], PERSON | {"lat": 500}, ())],
            attributes=DECLARED,
        ),
        _played("a category of phases is answered", 4, [([waves()], PERSON, ())], attributes=DECLARED),
        _played("a missing category of phases is answered", 4, [([waves()], UNKNOWN, ())], attributes=DECLARED),
        _played(
            "phases with categories outside the bounds",
            4,
            [([waves()], PERSON | {"lat": 500}, ())],
            attributes=DECLARED,
        ),
        _played("attributes that no round needs", 4, [([asked()], PERSON, ())], attributes=DECLARED),
        _played("a place is answered", 2, [([places(asked())], AT, ())], features=PLACE),
        _played("a place outside the bounds", 2, [([places(counting())], AT | {"latitude": 60}, ())], features=PLACE),
        _played(
            "a profile of places is answered",
            4,
            [([places(profile())], AT | {"plan": "pro", "income": 0.2}, ())],
            attributes=DECLARED,
            features=PLACE,
        ),
        _played(
            "places are refused without features, others are not",
            4,
            [([places(asked()), asked("rnd_2")], RECORD, ())],
        ),
        _played("a round that changed is refused", 4, [([asked()], RECORD, ()), ([asked(kind="grr")], RECORD, ())]),
        *(_timed(f"a cap per period: {name}", period, times) for name, (period, times) in _PERIODS.items()),
        _timed("a cap per period does not raise the cap", "day", _days(3), cap=2),
    ]


def _days(n: int) -> list[str]:
    return [f"2026-11-{23 + number}T09:00:00" for number in range(n)]


# The clock at each call of a device that may spend one report per period
_PERIODS: dict[str, tuple[str, list[str]]] = {
    "days": ("day", ["2026-11-23T00:00:00", "2026-11-23T23:59:59", "2026-11-24T00:00:00"]),
    "weeks": ("week", ["2026-11-23T00:00:00", "2026-11-29T23:59:59", "2026-11-30T00:00:00"]),
    "a week of two years": ("week", ["2026-12-31T12:00:00", "2027-01-03T12:00:00", "2027-01-04T12:00:00"]),
    "months": ("month", ["2028-02-01T00:00:00", "2028-02-29T23:59:59", "2028-03-01T00:00:00"]),
    "quarters": ("quarter", ["2026-10-01T00:00:00", "2026-12-31T23:59:59", "2027-01-01T00:00:00"]),
    "years": ("year", ["2027-01-01T00:00:00", "2027-12-31T23:59:59", "2028-01-01T00:00:00"]),
    "a clock that goes back": ("week", ["2026-12-01T12:00:00", "2026-11-23T12:00:00", "2026-12-07T12:00:00"]),
    "a clock that jumps ahead": ("day", ["2031-05-01T12:00:00", "2026-11-24T12:00:00", "2031-05-02T12:00:00"]),
    "a clock before 1970": ("day", ["1969-12-31T12:00:00", "1970-01-01T12:00:00", "1970-01-02T12:00:00"]),
    "two rounds in a period": ("month", ["2026-11-01T12:00:00", "2026-11-02T12:00:00"]),
}


def _timed(name: str, period: str, times: list[str], cap: float = 8) -> Json:
    """A device that is offered a new round at each time, and may spend one report per period."""
    calls = [([asked(f"rnd_{number + 1}")], RECORD, ()) for number in range(len(times))]
    return _played(name, cap, calls, cap_per_period={"period": period, "epsilon": "1.5"}, times=times)


def refusal_vectors() -> list[Json]:
    """Devices that refuse: one call each, which sends nothing and raises."""
    cases = [_played(name, cap, [(rounds, record, ())]) for name, cap, rounds, record in _refused()]
    cases += [
        _played(name, 4, [([listed], record, ())], attributes=declared)
        for name, listed, record, declared in (*_undescribed(), *_declared_otherwise())
    ]
    cases += [
        _played(name, 4, [([listed], record, ())], attributes=declared, features=features)
        for name, listed, record, declared, features in _places()
    ]
    for case in cases:
        (call,) = case["calls"]
        assert call["error"], case["name"]
        assert not call["sent"], case["name"]
    return cases


def _refused() -> list[tuple[str, float, list[Any], Any]]:
    rounds = [(name, 2.0, [_changed(change)], RECORD) for name, change in _CHANGES.items()]
    caps: list[tuple[str, float, list[Any], Any]] = [
        ("over the cap", 0.999999999, [asked()], RECORD),
        ("far over the cap", 0.000001, [asked(epsilon_nano=32 * NANO, kind="grr")], RECORD),
    ]
    records = [
        ("too few features", [1.0]), ("too many features", [1.0, 2.0, 3.0]), ("no features", []),
        ("a feature is missing", {"lon": 1.0}), ("another feature", {"lon": 1.0, "lat": 2.0, "age": 3.0}),
    ]  # fmt: skip
    return rounds + caps + [(name, 2.0, [asked()], record) for name, record in records]


_WRONG_WAVES: dict[str, Json] = {
    "phases with characters and no attribute": {"attributes": []},
    "phases with an attribute and no characters": {"characters": []},
    "phases with fewer rows of characters than waves": {"characters": [[0], [3]]},
    "phases with a character of another attribute": {"characters": [[0, 1], [3, 0], [0, 0]]},
    "phases with a character that is not below the categories": {"characters": [[0], [5], [0]]},
    "phases with a negative character": {"characters": [[0], [-1], [0]]},
    "phases with a character of a wave of weight zero": {"characters": [[0], [3], [1]]},
    "phases with an attribute in no wave": {"characters": [[0], [0], [0]]},
    "phases with a numeric attribute": {"attributes": [attribute_to_wire(INCOME)]},
    "phases with an attribute twice": {
        "attributes": [attribute_to_wire(FORMING)] * 2,
        "characters": [[0, 1], [3, 0], [0, 0]],
    },
    "phases with too many categories": {
        "attributes": [attribute_to_wire(replace(FORMING, values=tuple(f"v{place}" for place in range(15))))]
    },
    "phases with too many attributes": {
        "attributes": [attribute_to_wire(replace(FORMING, name=f"plan{place}")) for place in range(5)],
        "characters": [[1] * 5, [1] * 5, [0] * 5],
    },
}


def _declared_otherwise() -> list[tuple[str, Json, Any, tuple[Attribute, ...]]]:
    """Rounds with other declarations than the app. A device refuses them for each record, and draws no word."""
    own: dict[str, tuple[Attribute, ...]] = {
        "the app declares another value": (replace(PLAN, values=("free", "gold", "été")), INCOME),
        "the app declares one value more": (replace(PLAN, values=(*PLAN.values, "gold")), INCOME),
        "the app declares the values in another order": (replace(PLAN, values=PLAN.values[::-1]), INCOME),
        "the app refuses unknown values": (replace(PLAN, unknown="refuse"), INCOME),
        "the app refuses missing values": (replace(PLAN, missing="refuse"), INCOME),
        "the app declares numbers": (Numeric(PLAN.name, [0, 1, 2], missing="category"), INCOME),
        "the app declares another edge": (PLAN, replace(INCOME, bins=(0, 0.1, 0.3, 1e6))),
        "the app does not declare an attribute": (PLAN,),
    }
    probing = profile(values=("free", "pro"), unknown="refuse")
    return [
        *((name, profile(), PERSON, declared) for name, declared in own.items()),
        ("a round that asks for a vocabulary, and the value is in it", probing, PERSON, DECLARED),
        ("a round that asks for a vocabulary, and the value is not in it", probing, UNKNOWN, DECLARED),
    ]


def _places() -> list[tuple[str, Json, Any, tuple[Attribute, ...], tuple[Feature, ...] | None]]:
    """Rounds of places. A device refuses them for each record, and draws no word, unless the app declares the place."""
    person = {"plan": "pro", "income": 0.2}
    plain = tuple(replace(each, coordinate=None) for each in PLACE)
    rounds = {"a place": places(asked()), "a place that counts records outside": places(counting())}
    return [
        *(
            (f"{name} and no features, {of}", listed, record, (), None)
            for name, listed in rounds.items()
            for of, record in POSED.items()
        ),
        *(
            (f"a profile of places and no features, {of}", places(profile()), record | person, DECLARED, None)
            for of, record in POSED.items()
        ),
        *((f"a place and other features, {of}", places(asked()), record, (), plain) for of, record in POSED.items()),
        *(
            (f"a place of the app, {of}", places(asked()), record, (), PLACE)
            for of, record in POSED.items()
            if record != AT
        ),
    ]


def _undescribed() -> list[tuple[str, Json, Any, tuple[Attribute, ...]]]:
    strict, wide = profile(unknown="refuse", missing="refuse"), profile()
    refusing = (replace(PLAN, unknown="refuse", missing="refuse"), INCOME)
    wide["spec"]["encoding"]["labels"] = [1, 0, 900, 1]
    untreated = profile(unknown="refuse")
    untreated["spec"]["encoding"]["attributes"][0]["unknown"] = None
    return [
        ("a profile of an app without attributes", profile(), RECORD, ()),
        ("a grid with categories of an app without attributes", categories(), RECORD, ()),
        (
            "a grid with two attributes",
            categories(attributes=[attribute_to_wire(FORMING), attribute_to_wire(INCOME)]),
            PERSON,
            DECLARED,
        ),
        ("a grid with a numeric attribute", categories(attributes=[attribute_to_wire(INCOME)]), PERSON, DECLARED),
        ("a grid with other categories than its mechanism", categories(attributes=[]), PERSON, DECLARED),
        ("phases with categories of an app without attributes", waves(), RECORD, ()),
        *((name, waves(**changes), PERSON, DECLARED) for name, changes in _WRONG_WAVES.items()),
        ("phases with null in place of attributes", waves(attributes=None, characters=None), PERSON, DECLARED),
        ("an attribute with null in place of a treatment", untreated, PERSON, DECLARED),
        (
            "an attribute with a value called as the category of others",
            waves(attributes=[attribute_to_wire(FORMING) | {"values": ["free", "pro", "other"]}]),
            PERSON,
            DECLARED,
        ),
        ("a profile without names", profile(), RECORD, DECLARED),
        ("a profile without a value", profile(), {"lon": 12.5, "lat": 48.2, "plan": "pro"}, DECLARED),
        ("a number for a text", profile(), PERSON | {"plan": 3}, DECLARED),
        ("a text for a number", profile(), PERSON | {"income": "0.2"}, DECLARED),
        ("a value outside of the vocabulary", strict, PERSON | {"plan": "none"}, refusing),
        ("a missing value that is refused", strict, PERSON | {"plan": None}, refusing),
        ("a profile of another number of symbols", wide, PERSON, DECLARED),
        *(
            (name, _with_profile(**changes), PERSON, DECLARED)
            for name, changes in {
                "starts that do not ascend": {"starts": [0, 4, 4, 11]},
                "starts beyond the cells": {"starts": [0, 1, 4, 15]},
                "a start without a label": {"labels": [1, 0, 2]},
                "centroids and cells": {"centroids": [[1, 2]]},
                "neither centroids nor cells": {"cells": [], "starts": [], "labels": []},
                "an attribute twice": {"attributes": [attribute_to_wire(PLAN)] * 2},
                "no attributes": {"attributes": []},
                "edges that do not ascend": {"attributes": [attribute_to_wire(INCOME) | {"bins": [0, 2, 1]}]},
                "a kind of attribute nobody knows": {"attributes": [attribute_to_wire(PLAN) | {"kind": "text"}]},
                "a treatment nobody knows": {"attributes": [attribute_to_wire(PLAN) | {"unknown": "drop"}]},
            }.items()
        ),
    ]


def _with_profile(**changes: Any) -> Json:
    listed = profile()
    listed["spec"]["encoding"] |= changes
    return listed


def _changed(change: Callable[[Json], None]) -> Json:
    listed = copy.deepcopy(asked())
    change(listed)
    return listed


def _set(*path: Any) -> Callable[[Json], None]:
    *places, key, value = path

    def change(listed: Json) -> None:
        part: Any = listed
        for place in places:
            part = part[place]
        part[key] = value

    return change


def _without(*path: Any) -> Callable[[Json], None]:
    *places, key = path

    def change(listed: Json) -> None:
        part: Any = listed
        for place in places:
            part = part[place]
        del part[key]

    return change


_LATTICE = to_wire(LatticeEncoding(2, 3))
_MARKED = count_outside(
    RoundSpec(FEATURES[:2], LatticeEncoding(2, 8), mechanisms.DiscreteLaplaceMechanism.design(2, 8, NANO))
)
_CHANGES: dict[str, Callable[[Json], None]] = {
    "another version": _set("spec", "version", 2),
    "no version": _without("spec", "version"),
    "a version in words": _set("spec", "version", "1"),
    "no mechanism": _without("spec", "mechanism"),
    "a part nobody knows": _set("spec", "rounds", 3),
    "a mechanism nobody knows": _set("spec", "mechanism", "type", "rappor"),
    "an encoding nobody knows": _set("spec", "encoding", "type", "hexagons"),
    "a field nobody knows": _set("spec", "mechanism", "seed", 7),
    "a threshold of 0": _set("spec", "mechanism", "hold_threshold", "0"),
    "a threshold of 2^64": _set("spec", "mechanism", "hold_threshold", str(DRAW_SPAN)),
    "a threshold above 2^64": _set("spec", "mechanism", "hold_threshold", str(DRAW_SPAN + 1)),
    "a threshold as a number": _set("spec", "mechanism", "hold_threshold", 9_007_199_254_740_991),
    "a negative threshold": _set("spec", "mechanism", "hold_threshold", "-5"),
    "a threshold in other digits": _set("spec", "mechanism", "hold_threshold", "\u0661"),
    "a threshold after a space": _set("spec", "mechanism", "hold_threshold", " 1"),
    "a threshold with a separator": _set("spec", "mechanism", "hold_threshold", "1_000"),
    "a threshold in hex": _set("spec", "mechanism", "hold_threshold", "0x10"),
    "a threshold of 21 digits": _set("spec", "mechanism", "hold_threshold", "1" * 21),
    "a subset of all": _set("spec", "mechanism", "subset_size", 16),
    "a subset of none": _set("spec", "mechanism", "subset_size", 0),
    "a subset size of a half": _set("spec", "mechanism", "subset_size", 1.5),
    "true for a number": _set("spec", "mechanism", "subset_size", True),
    "another number of symbols": _set("spec", "mechanism", "n_symbols", 17),
    "no cells": _set("spec", "encoding", "cells", []),
    "cells of 0": _set("spec", "encoding", "cells", [0, 4]),
    "too many cells": _set("spec", "encoding", "cells", [4096, 4096]),
    "another number of features": _set("spec", "encoding", "cells", [16]),
    "a lattice without its noise": _set("spec", "encoding", _LATTICE),
    "a tree that tiles nothing": _set("spec", "encoding", {"type": "tree_grid", "n_features": 2, "levels": [1, 1, 1]}),
    "records outside without a symbol": _set("spec", "out_of_bounds", "count"),
    "records outside are treated otherwise": _set("spec", "out_of_bounds", "drop"),
    "records outside are null": _set("spec", "out_of_bounds", None),
    "a mark that costs more": _set("spec", to_wire(_MARKED) | {"mechanism": to_wire(_MARKED.mechanism) | {"mark": 9}}),
    "a mark in a round that clips": _set("spec", {**to_wire(_MARKED), "out_of_bounds": "clip"}),
    "waves of weight zero alone": _set("spec", "encoding", {"type": "phase", "weights": [[0, 0]], "phases": 16}),
    "an empty draw": _set("spec", "participation", {"lo": "7", "hi": "7"}),
    "a draw past 2^64": _set("spec", "participation", {"lo": "0", "hi": str(DRAW_SPAN + 1)}),
    "a draw without its end": _without("spec", "participation", "hi"),
    "a draw without its beginning": _without("spec", "participation", "lo"),
    "a draw of nothing": _set("spec", "participation", {}),
    "a draw of numbers": _set("spec", "participation", {"lo": 0, "hi": 10}),
    "bounds the wrong way": _set("spec", "features", 0, "lower", 500.0),
    "equal bounds": _set("spec", "features", 0, "lower", 180.0),
    "a bound in words": _set("spec", "features", 0, "lower", "-180"),
    "two features of one name": _set("spec", "features", 1, "name", "lon"),
    "a feature without a name": _set("spec", "features", 0, "name", ""),
    "no features": _set("spec", "features", []),
    "it keeps reports": _set("keep_reports", True),
    "it does not state whether it keeps reports": _without("keep_reports"),
    "it states in words that it keeps no reports": _set("keep_reports", "false"),
    "it keeps null": _set("keep_reports", None),
    "it says less than it costs": _set("epsilon", 0.999999999),
    "an epsilon in words": _set("epsilon", "1"),
    "an epsilon of 0": _set("epsilon", 0),
    "an epsilon above 32": _set("epsilon", 33),
    "ten decimals": _set("epsilon", 1.0000000001),
    "no epsilon": _without("epsilon"),
    "no id": _without("id"),
    "an id with a slash": _set("id", "rnd/../../keys"),
    "an id of 65 characters": _set("id", "r" * 65),
    "no spec": _without("spec"),
    "a channel that hides nothing": _set(
        "spec", "mechanism", {"type": "grr", "n_symbols": 16, "keep_threshold": str(DRAW_SPAN)}
    ),
    "noise of nothing": _set(
        "spec",
        to_wire(
            RoundSpec(
                (Feature("lon", -180, 180), Feature("lat", -59.7, 83.1)),
                LatticeEncoding(2, 8),
                mechanisms.DiscreteLaplaceMechanism.design(2, 8, NANO),
            )
        )
        | {
            "mechanism": {
                "type": "discrete_laplace", "n_features": 2, "steps": 8,
                "scale_numerator": 0, "scale_denominator": 1, "margin": 4,
            }
        },
    ),
}  # fmt: skip


def _played(
    name: str,
    cap: float,
    calls: list[tuple[list[Any], Any, tuple[int, ...]]],
    accept_kept_reports: bool = False,
    attributes: Sequence[Attribute] = (),
    features: Sequence[Feature] | None = None,
    cap_per_period: Json | None = None,
    times: Sequence[str] | None = None,
) -> Json:
    """Run the Python device and return its calls."""
    store, service, played = MemoryStore(), ScriptedService(), []
    limit = None if cap_per_period is None else (cap_per_period["period"], cap_per_period["epsilon"])
    for number, ((rounds, record, first), at) in enumerate(zip(calls, times or [NOON] * len(calls), strict=True)):
        clock = int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp())
        entropy = PlannedEntropy(f"sfumato device {name} {number}", first)
        service.rounds = copy.deepcopy(rounds)
        service.sent.clear()
        device = service.device(
            cap=cap,
            cap_per_period=limit,
            store=store,
            entropy=entropy,
            accept_kept_reports=accept_kept_reports,
            features=features,
            attributes=attributes,
            clock=partial(float, clock),
        )
        call: Json = {"open": {"rounds": rounds}, "record": record, "clock": clock}
        call |= {"outcome": None, "rounds": [], "error": None}
        try:
            receipt = device.report(record)
        except SfumatoError as error:
            call["error"] = error.code
        else:
            call |= {"outcome": str(receipt.outcome), "rounds": [_told(answered) for answered in receipt.rounds]}
        played.append(call | {"entropy": entropy.hex, "sent": [_sent(*each) for each in service.sent]})
    return {
        "name": name,
        "cap": str(Decimal(repr(cap))),
        "cap_per_period": cap_per_period,
        "accept_kept_reports": accept_kept_reports,
        "features": None if features is None else [to_wire(each) for each in features],
        "attributes": [attribute_to_wire(each) for each in attributes],
        "calls": played,
    }


def _told(answered: RoundOutcome) -> Json:
    error = None if answered.error is None else answered.error.code
    outside = list(answered.outside)
    return {"id": answered.round_id, "outcome": str(answered.outcome), "error": error, "outside": outside}


def _sent(round_id: str, body: bytes) -> Json:
    return {"id": round_id, "body": body.decode()}
