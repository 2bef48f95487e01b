"""Nearest centroids: integers, the same on every device, ties to the first, nothing that a double cannot hold."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.bulk import perturb_records
from sfumato.device import Outcome
from sfumato.encodings import scale_many, symbol, symbols
from sfumato.errors import InvalidSpec, SfumatoError
from sfumato.mechanisms import grr
from sfumato.specs import (
    LATTICE,
    MAX_CENTROIDS,
    MAX_FEATURES,
    Draw,
    Feature,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    NearestCentroidEncoding,
    RoundSpec,
    algorithm_from_wire,
    encoding_from_wire,
    to_wire,
)
from tests import naive
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round

coordinates = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, np.nextafter(1.0, 0)])
places = st.integers(0, LATTICE - 1) | st.sampled_from([0, LATTICE // 2, LATTICE - 1])


@st.composite
def encodings(draw: st.DrawFn) -> NearestCentroidEncoding:
    n_features = draw(st.integers(1, 5) | st.just(MAX_FEATURES))
    row = st.lists(places, min_size=n_features, max_size=n_features).map(tuple)
    return NearestCentroidEncoding(tuple(draw(st.lists(row, min_size=1, max_size=6))))


class TestSymbols:
    @settings(deadline=None)
    @given(st.data(), encodings())
    def test_it_is_what_the_definition_says_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: NearestCentroidEncoding
    ) -> None:
        d = encoding.n_features
        on_centroid = st.sampled_from(encoding.centroids).map(lambda row: [x / LATTICE for x in row])
        points = data.draw(
            st.lists(st.lists(coordinates, min_size=d, max_size=d) | on_centroid, min_size=1, max_size=5)
        )
        slots = [data.draw(st.integers(0, encoding.n_slots - 1)) for _ in points]
        plain = [
            naive.nearest_centroid_symbol(encoding.centroids, p, slot) for p, slot in zip(points, slots, strict=True)
        ]
        assert [symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)] == plain
        assert symbols(encoding, np.array(points), np.array(slots)).tolist() == plain
        assert all(0 <= index < encoding.n_symbols for index in plain)

    def test_of_equally_near_centroids_it_is_the_first(self) -> None:
        encoding = NearestCentroidEncoding(((3, 0), (0, 3), (3, 0), (0, 0)))
        points = np.array([[3.0, 3.0], [3.0, 0.0], [1.5, 1.5]]) / LATTICE
        assert symbols(encoding, points, np.zeros(3, dtype=np.int64)).tolist() == [0, 0, 6 + 1]

    def test_the_centroid_itself_is_not_above(self) -> None:
        encoding = NearestCentroidEncoding(((5, LATTICE - 1),))
        assert [symbol(encoding, [x / LATTICE, 1.0], 0) for x in (4, 5, 6)] == [0, 0, 1]
        assert symbol(encoding, [0.0, 1.0], 1) == 0  # the upper bound is the last place

    def test_the_largest_distances_differ_by_one_and_are_told_apart(self) -> None:
        far, one_nearer = (LATTICE - 1,) * MAX_FEATURES, (LATTICE - 1,) * (MAX_FEATURES - 1) + (LATTICE - 2,)
        for rows, nearest in (((far, one_nearer), 1), ((one_nearer, far), 0)):
            encoding = NearestCentroidEncoding(rows)
            origin = np.zeros((1, MAX_FEATURES))
            assert symbols(encoding, origin, np.zeros(1, dtype=np.int64)).tolist() == [2 * nearest]
            assert symbol(encoding, [0.0] * MAX_FEATURES, 0) == 2 * nearest

    def test_no_sum_a_device_makes_leaves_a_doubles_integers(self) -> None:
        assert 2 * MAX_FEATURES * LATTICE**2 < 2**53


class TestTheWire:
    @settings(deadline=None)
    @given(encodings())
    def test_an_encoding_comes_back_equal_through_json(self, encoding: NearestCentroidEncoding) -> None:
        assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding
        assert (encoding.n_slots, encoding.n_symbols) == (encoding.n_features, 2 * len(encoding.centroids))

    @pytest.mark.parametrize(
        "centroids",
        [
            [],
            None,
            1,
            [1, 2],
            [[]],
            [[1, 2], [3]],
            [[1, 2.0]],
            [[1, True]],
            [[-1, 0]],
            [[LATTICE, 0]],
            [[0] * (MAX_FEATURES + 1)],
            [[0, 0]] * (MAX_CENTROIDS + 1),
            ["12"],
        ],
        ids=lambda rows: repr(rows)[:40],
    )
    def test_what_are_no_centroids_is_refused(self, centroids: Any) -> None:
        with pytest.raises(InvalidSpec):
            encoding_from_wire({"type": "nearest_centroid", "centroids": centroids})

    def test_as_many_as_may_be_are_taken(self) -> None:
        encoding = NearestCentroidEncoding(((LATTICE - 1,) * MAX_FEATURES,) * MAX_CENTROIDS)
        assert encoding.n_symbols == 512


class TestParameters:
    @pytest.mark.parametrize(
        "algorithm",
        [GridKmeans(1, 4), GridKmeans(0.5, 1, cells=16, seed=7), LdpKmeans(1, 4), LdpKmeans(32, 256, rounds=32)],
    )
    def test_come_back_equal_through_json(self, algorithm: Any) -> None:
        assert algorithm_from_wire(json.loads(json.dumps(to_wire(algorithm)))) == algorithm

    @pytest.mark.parametrize("kind", [GridKmeans, LdpKmeans])
    @pytest.mark.parametrize(
        "changes",
        [{"clusters": c} for c in (None, 0, 257, 2.0, True)]
        + [{"epsilon": e} for e in (0, 33, "1", float("nan"))]
        + [{"seed": s} for s in (-1, 1 << 32, 0.5)],
        ids=repr,
    )
    def test_out_of_range_are_refused(self, kind: Any, changes: dict[str, Any]) -> None:
        assert kind(epsilon=1, clusters=2).seed == 0
        with pytest.raises(SfumatoError):
            kind(**({"epsilon": 1, "clusters": 2} | changes))

    @pytest.mark.parametrize(
        ("kind", "changes"),
        [(GridKmeans, {"cells": c}) for c in (1, 1025, 2.0)] + [(LdpKmeans, {"rounds": r}) for r in (2, 33, True)],
    )
    def test_of_their_own_out_of_range_are_refused(self, kind: Any, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            kind(epsilon=1, clusters=2, **changes)


ENCODING = NearestCentroidEncoding(((LATTICE // 4, LATTICE // 4), (LATTICE // 2, LATTICE // 8), (0, LATTICE - 1)))


class TestDevices:
    """Two rounds of one collection, split by the draw, as one device and as many answer them."""

    @pytest.mark.parametrize(("draw", "answered"), [(0.1, 0), (0.7, 1)])
    def test_a_device_answers_the_round_its_draw_is_for_with_the_symbol_of_its_record(
        self, draw: float, answered: int
    ) -> None:
        rounds = [
            RoundSpec(FEATURES, encoding, mechanisms.design("grr", encoding.n_symbols, NANO), part)
            for encoding, part in (
                (ENCODING, Draw.between(0, 0.4)),
                (NearestCentroidEncoding(ENCODING.centroids[::-1]), Draw.between(0.4, 1)),
            )
        ]
        service = ScriptedService(
            *(open_round(f"rnd_{i}", spec, collection_id="job_1") for i, spec in enumerate(rounds))
        )
        words = [int(draw * DRAW_SPAN), 1 << 63, 0, 1, 2]  # slot 1 of two; keep the symbol; report id
        receipt = service.device(entropy=ReplayEntropy(words)).report([6.0, 1.5])
        outcomes = [answer.outcome for answer in receipt.rounds]
        assert outcomes[answered] is Outcome.SENT
        assert outcomes[1 - answered] is Outcome.NOT_DRAWN
        ((round_id, (report,)),) = service.stored.items()
        assert (round_id, report["slot"]) == (f"rnd_{answered}", 1)
        assert base64.b64decode(report["value"]) == bytes([2 * 1 + 1])  # the middle one, above it

    def test_many_devices_send_the_symbols_of_their_records(self) -> None:
        features = (Feature("x", 0, 10), Feature("y", -5, 5))
        spec = RoundSpec(features, ENCODING, GrrMechanism(ENCODING.n_symbols, DRAW_SPAN))
        records = np.random.default_rng(3).uniform([0, -5], [10, 5], (400, 2))
        _, slots, values = perturb_records(spec, records)
        points = scale_many(features, records).tolist()
        expected = [
            naive.nearest_centroid_symbol(ENCODING.centroids, p, int(slot))
            for p, slot in zip(points, slots, strict=True)
        ]
        assert grr.symbols_of(values).tolist() == expected
        assert set(slots.tolist()) == {0, 1}
        assert set(expected) == set(range(6))
