"""Messages of the specifications: each names the fault and what the value must be."""

from collections.abc import Callable

import pytest

from sfumato import Embedding, Feature, Participation, PhaseSketch
from sfumato.errors import InvalidSpec
from sfumato.model.memberships import FuzzyMemberships, GaussianMixtureMemberships
from sfumato.specs import (
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    GridEncoding,
    GrrMechanism,
    LatticeEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    SsMechanism,
    TreeGridEncoding,
    WindowMechanism,
    encoding_from_wire,
    features_from_wire,
    job_from_wire,
    mechanism_from_wire,
    round_spec_from_wire,
)

X = {"name": "x", "lower": 0, "upper": 1}
ROUND = {"version": 1, "features": [X], "encoding": {"type": "grid", "cells": [2]}}
WAVES = ((1, 2),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: features_from_wire([X, X]), "feature names must be unique: 'x' occurs twice"),
        (lambda: features_from_wire([]), "features must be a list of 1 to 1536"),
        (lambda: Feature("", 0, 1), "name of a feature must have 1 to 64"),
        (lambda: Feature("x", 2, 1), "x: lower must lie below upper: 2 and 1"),
        (lambda: Embedding(0), "dimensions must be an integer from 1 to 1536, not 0"),
        (lambda: Embedding(2, -1.0), "norm must be positive and at most 1e.300, not -1"),
        (lambda: Participation(3, 2), "lo and hi of a participation must satisfy"),
        (lambda: GridEncoding(()), "grid must have 1 to 64 features, not 0"),
        (lambda: GridEncoding((2, 0)), "cells per feature must be positive integers, not 0"),
        (lambda: GridEncoding((1,)), "grid must have 2 to 1048576 cells, not 1"),
        (lambda: ShiftedGridEncoding(9, 2, 2), "n_features of a shifted grid must be an integer from 1 to 8, not 9"),
        (lambda: TreeGridEncoding(1, (1, 1, 1)), "cells must tile the box"),
        (lambda: NearestCentroidEncoding(((1,), (1, 2))), "rows of centroids must have equal lengths"),
        (lambda: CentroidSignEncoding(((-1,),)), "centroids must be integers from 0"),
        (lambda: PhaseEncoding(((0, 0),), 4), "weights must have a row that is not all zero"),
        (lambda: PhaseEncoding(WAVES, 3), "phases must be an integer from 4 to 1024, not 3"),
        (lambda: LatticeEncoding(1, True), "steps must be an integer from 1 to 65536, not a value of type bool"),
        (lambda: GrrMechanism(1, 5), "n_symbols must lie in the range 2 to 1048577"),
        (lambda: SsMechanism(4, 4, 5), "subset_size must be less than n_symbols: 4 of 4"),
        (lambda: WindowMechanism(4, 5, 5), "window_size must be less than n_symbols: 5 of 4"),
        (lambda: DiscreteLaplaceMechanism(1, 1, 1, 1, -1), "margin must lie in the range 0 to"),
        (lambda: PhaseSketch(1.0, clusters=300), "clusters must lie in the range 1 to"),
        (
            lambda: RoundSpec((Feature("x", 0, 1),), GridEncoding((2, 2)), GrrMechanism(4, 5)),
            "the encoding must be for 1 features, not 2",
        ),
        (
            lambda: RoundSpec((Feature("x", 0, 1),), GridEncoding((4,)), GrrMechanism(5, 5)),
            "mechanism must be for 4 symbols, as the encoding: 5",
        ),
        (lambda: round_spec_from_wire(ROUND), "a round spec must have mechanism, participation"),
        (lambda: round_spec_from_wire([]), "round spec must be an object, not a value of type list"),
        (lambda: encoding_from_wire(3), "encoding must be an object, not 3"),
        (lambda: mechanism_from_wire({"type": "laplace"}), "unknown mechanism; this version knows grr"),
        (lambda: job_from_wire({"type": "shifted_grid", "epsilon": 1, "k": 2}), "unknown k: use epsilon"),
        (lambda: FuzzyMemberships("gaussian", 1.0, 0.1), "m must be above 1, not 1"),
        (lambda: GaussianMixtureMemberships((0.0,)), "widths must be above 0"),
    ],
)
def test_each_kind_of_object_states_its_fault(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        make()
