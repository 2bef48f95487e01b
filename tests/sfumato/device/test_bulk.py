"""Reports of many devices, and their packed form."""

import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.device.bulk import Reports, pack, perturb_records
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.mechanisms.base import read_numbers
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.records.encodings import scale_many, symbols
from sfumato.specs import Feature, GrrMechanism, Participation, RoundSpec, ShiftedGridEncoding
from tests.sfumato.replay import GeneratorEntropy

FEATURES = (Feature("x", 0, 10), Feature("y", -5, 5))
ENCODING = ShiftedGridEncoding(n_features=2, cells=3, shifts=4)
EXACT = GrrMechanism(16, DRAW_SPAN)


def spec(participation: Participation | None = None, *, exact: bool = False) -> RoundSpec:
    mechanism = EXACT if exact else mechanisms.design("ss", 16, NANO)
    return RoundSpec(FEATURES, ENCODING, mechanism, participation or Participation())


def some_records(n: int) -> np.ndarray:
    return np.random.default_rng(9).uniform([0, -5], [10, 5], (n, 2))


class TestPerturbRecords:
    def test_every_record_reports_to_a_round_for_all_draws(self) -> None:
        report_ids, slots, values = perturb_records(spec(), some_records(3000))
        assert report_ids.shape == (3000, 16)
        assert len({row.tobytes() for row in report_ids}) == 3000
        assert slots.dtype == np.uint32
        assert set(slots.tolist()) == set(range(16))
        assert spec().mechanism.are_values(values).all()

    def test_perturbs_the_symbol_of_the_record_in_its_slot(self) -> None:
        records = some_records(500)
        _, slots, values = perturb_records(spec(exact=True), records)
        expected = symbols(ENCODING, scale_many(FEATURES, records), slots.astype(np.int64))
        assert read_numbers(values).tolist() == expected.tolist()

    def test_reports_only_if_the_draw_lies_inside(self) -> None:
        assert len(perturb_records(spec(Participation.between(0, 0.25)), some_records(4000)).slots) == pytest.approx(
            1000, abs=220
        )
        ends = np.array([0, 99, 100, 199, 200, DRAW_SPAN - 1], dtype=np.uint64)
        records = np.arange(6)[:, None] * [2.0, 0.0]
        for draw, inside in [
            (Participation(100, 200), [2, 3]),
            (Participation(100, DRAW_SPAN), [2, 3, 4, 5]),
            (Participation(0, 100), [0, 1]),
        ]:
            reports = perturb_records(spec(draw, exact=True), records, draws=ends)
            places = symbols(ENCODING, scale_many(FEATURES, records[inside]), reports.slots.astype(np.int64))
            assert read_numbers(reports.values).tolist() == places.tolist()

    def test_equal_seeds_give_equal_reports_with_other_ids(self) -> None:
        first = perturb_records(spec(), some_records(50), GeneratorEntropy(4))
        second = perturb_records(spec(), some_records(50), GeneratorEntropy(4))
        assert first.values.tolist() == second.values.tolist()
        assert first.slots.tolist() == second.slots.tolist()
        assert not {row.tobytes() for row in first.report_ids} & {row.tobytes() for row in second.report_ids}

    def test_no_records_give_no_reports(self) -> None:
        report_ids, slots, values = perturb_records(spec(), np.zeros((0, 2)))
        assert (report_ids.shape, slots.shape, values.shape) == ((0, 16), (0,), (0, 2))

    def test_refuses_a_bad_record_before_it_perturbs_any(self) -> None:
        coins = GeneratorEntropy(1)
        with pytest.raises(InvalidPoint):
            perturb_records(spec(), [[1.0, 2.0], [float("nan"), 0.0]], coins)
        assert coins.n_drawn == 0
        with pytest.raises(InvalidSpec):
            perturb_records(spec(), some_records(3), draws=np.zeros(2, dtype=np.uint64))


class TestPack:
    def test_a_packed_report_has_id_slot_and_value(self) -> None:
        ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
        packed = pack(Reports(ids, np.array([1, 0x01020304], dtype=np.uint32), np.array([[7], [9]], dtype=np.uint8)))
        assert packed[0].tobytes() == bytes(range(16)) + b"\x01\0\0\0\x07"
        assert packed[1].tobytes() == bytes(range(16, 32)) + b"\x04\x03\x02\x01\x09"

    @pytest.mark.parametrize(
        ("ids", "slots", "values"),
        [
            (np.zeros((2, 15), np.uint8), np.zeros(2, np.uint32), np.zeros((2, 1), np.uint8)),
            (np.zeros((2, 16), np.int64), np.zeros(2, np.uint32), np.zeros((2, 1), np.uint8)),
            (np.zeros((2, 16), np.uint8), np.array([0, 2**32]), np.zeros((2, 1), np.uint8)),
            (np.zeros((2, 16), np.uint8), np.array([0, -1]), np.zeros((2, 1), np.uint8)),
            (np.zeros((2, 16), np.uint8), np.zeros(2), np.zeros((2, 1), np.uint8)),
            (np.zeros((2, 16), np.uint8), np.zeros(2, np.uint32), np.zeros((3, 1), np.uint8)),
            (np.zeros((2, 16), np.uint8), np.zeros(2, np.uint32), np.zeros(2, np.uint8)),
        ],
    )
    def test_refuses_columns_that_do_not_fit(self, ids: np.ndarray, slots: np.ndarray, values: np.ndarray) -> None:
        with pytest.raises(InvalidSpec):
            pack(Reports(ids, slots, values))
