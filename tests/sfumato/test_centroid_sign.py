"""One bit about the nearest centroid: the same on every device, orthogonal signs, and slots that tell masses."""

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
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import epsilon_nano, grr
from sfumato.specs import (
    LATTICE,
    MAX_CENTROIDS,
    MAX_FEATURES,
    CentroidSignEncoding,
    Feature,
    GrrMechanism,
    RoundSpec,
    encoding_from_wire,
    to_wire,
)
from tests import naive
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round

coordinates = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, np.nextafter(1.0, 0)])
places = st.integers(0, LATTICE - 1) | st.sampled_from([0, LATTICE // 2, LATTICE - 1])


@st.composite
def encodings(draw: st.DrawFn) -> CentroidSignEncoding:
    n_features = draw(st.integers(1, 4) | st.just(MAX_FEATURES))
    row = st.lists(places, min_size=n_features, max_size=n_features).map(tuple)
    return CentroidSignEncoding(tuple(draw(st.lists(row, min_size=1, max_size=9))))


class TestSymbols:
    @settings(deadline=None)
    @given(st.data(), encodings())
    def test_it_is_what_the_definition_says_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: CentroidSignEncoding
    ) -> None:
        d = encoding.n_features
        on_centroid = st.sampled_from(encoding.centroids).map(lambda row: [x / LATTICE for x in row])
        points = data.draw(
            st.lists(st.lists(coordinates, min_size=d, max_size=d) | on_centroid, min_size=1, max_size=5)
        )
        slots = [data.draw(st.integers(0, encoding.n_slots - 1)) for _ in points]
        plain = [naive.centroid_sign_symbol(encoding.centroids, p, slot) for p, slot in zip(points, slots, strict=True)]
        assert [symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)] == plain
        assert symbols(encoding, np.array(points), np.array(slots)).tolist() == plain
        assert set(plain) <= {0, 1}

    def test_in_the_first_row_it_is_the_side_alone(self) -> None:
        encoding = CentroidSignEncoding(((10, 10), (1000, 1000), (5000, 5000)))
        assert encoding.n_rows == 4
        point = [1001 / LATTICE, 999 / LATTICE]
        assert [symbol(encoding, point, slot) for slot in (0, 4, 8)] == [1, 0, 1]

    def test_every_point_lies_above_past_the_last_feature_so_that_rows_tell_the_centroid(self) -> None:
        rng = np.random.default_rng(1)
        encoding = CentroidSignEncoding(tuple(tuple(row) for row in rng.integers(0, LATTICE, (5, 3)).tolist()))
        points = rng.random((200, 3))
        slots = 3 * encoding.n_rows + np.arange(encoding.n_rows)
        signs = np.array([2 * symbols(encoding, points, np.full(200, slot)) - 1 for slot in slots])
        walsh = np.array([[1 - 2 * (bin(h & c).count("1") % 2) for c in range(5)] for h in range(8)])
        nearest = (walsh.T @ signs / 8).argmax(axis=0)
        far = ((points[:, None] * LATTICE - np.array(encoding.centroids)) ** 2).sum(axis=2)
        assert nearest.tolist() == far.argmin(axis=1).tolist()
        assert (walsh.T @ walsh).tolist() == (8 * np.eye(5, dtype=int)).tolist()

    @pytest.mark.parametrize(("k", "rows"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64), (65, 128)])
    def test_there_are_as_many_rows_as_the_next_power_of_two(self, k: int, rows: int) -> None:
        encoding = CentroidSignEncoding(tuple((c, c) for c in range(k)))
        assert (encoding.n_rows, encoding.n_slots, encoding.n_symbols) == (rows, 3 * rows, 2)


class TestTheWire:
    @settings(deadline=None)
    @given(encodings())
    def test_an_encoding_comes_back_equal_through_json(self, encoding: CentroidSignEncoding) -> None:
        assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding

    @pytest.mark.parametrize(
        "centroids",
        [[], None, [1, 2], [[]], [[1, 2], [3]], [[1, 2.0]], [[-1, 0]], [[LATTICE, 0]], [[0, 0]] * (MAX_CENTROIDS + 1)],
        ids=lambda rows: repr(rows)[:40],
    )
    def test_what_are_no_centroids_is_refused(self, centroids: Any) -> None:
        with pytest.raises(InvalidSpec):
            encoding_from_wire({"type": "centroid_sign", "centroids": centroids})

    def test_as_many_as_may_be_are_taken(self) -> None:
        encoding = CentroidSignEncoding(((LATTICE - 1,) * MAX_FEATURES,) * MAX_CENTROIDS)
        assert encoding.n_slots == 65 * 256


ENCODING = CentroidSignEncoding(((LATTICE // 4, LATTICE // 4), (LATTICE // 2, LATTICE // 8), (0, LATTICE - 1)))


class TestDevices:
    def test_a_device_sends_the_bit_of_its_record_at_its_epsilon(self) -> None:
        spec = RoundSpec(FEATURES, ENCODING, mechanisms.design("auto", 2, NANO))
        assert NANO - 10 <= epsilon_nano(spec.mechanism) <= NANO
        slot = 1 * 4 + 1  # second feature, second row
        service = ScriptedService(open_round(spec=spec))
        words = [0, slot * (DRAW_SPAN // 12 + 1), 0, 1, 2]  # draw; slot of twelve; keep the symbol; report id
        receipt = service.device(entropy=ReplayEntropy(words)).report([6.0, 1.5])
        assert receipt.outcome is Outcome.SENT
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == slot
        own = naive.centroid_sign_symbol(ENCODING.centroids, [6.0 / 8, 1.5 / 8], slot)
        assert base64.b64decode(report["value"]) == bytes([own])
        assert own == 0  # the middle centroid, above it, and its sign in this row is minus

    def test_many_devices_send_the_symbols_of_their_records(self) -> None:
        features = (Feature("x", 0, 10), Feature("y", -5, 5))
        spec = RoundSpec(features, ENCODING, GrrMechanism(2, DRAW_SPAN))
        records = np.random.default_rng(3).uniform([0, -5], [10, 5], (400, 2))
        _, slots, values = perturb_records(spec, records)
        points = scale_many(features, records).tolist()
        expected = [
            naive.centroid_sign_symbol(ENCODING.centroids, p, int(slot)) for p, slot in zip(points, slots, strict=True)
        ]
        assert grr.symbols_of(values).tolist() == expected
        assert set(slots.tolist()) == set(range(12))
