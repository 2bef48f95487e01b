"""Reports in every form are packed alike, and the first bad one is named."""

import base64
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import reports
from service.problems import BadRequest, PayloadTooLarge, Problem, ReportMalformed, ValidationFailed
from service.reports import Shape
from sfumato import mechanisms
from sfumato.specs import Mechanism

MANY = 1_000_000


def shape(mechanism: Mechanism, n_slots: int = 9) -> Shape:
    return Shape("rnd", "ds", "ten", mechanism, n_slots, mechanisms.value_bytes(mechanism))


GRR = shape(mechanisms.design("grr", 5, 1_000_000_000))
SS = shape(mechanisms.design("ss", 20, 1_000_000_000))


def a_value(of: Shape, number: int) -> bytes:
    if of is GRR:
        return bytes([number % 5])
    size = of.mechanism.subset_size  # type: ignore[union-attr]
    bits = ((1 << size) - 1) << (number % (20 - size + 1))
    return bits.to_bytes(3, "little")


Rows = list[tuple[bytes, int, bytes]]


def rows(of: Shape, n_reports: int) -> Rows:
    rng = np.random.default_rng(n_reports)
    return [(rng.bytes(16), int(rng.integers(9)), a_value(of, number)) for number in range(n_reports)]


def octets(given: Rows) -> bytes:
    return b"".join(report_id + slot.to_bytes(4, "little") + value for report_id, slot, value in given)


def columns(given: Rows) -> bytes:
    return json.dumps(
        {
            "report_ids": [report_id.hex() for report_id, _, _ in given],
            "slots": [slot for _, slot, _ in given],
            "values": [base64.b64encode(value).decode() for _, _, value in given],
        }
    ).encode()


def arrow(given: Rows, *, batches: int = 1, **options: Any) -> bytes:
    width = len(given[0][2]) if given else 3
    schema = pa.schema([("report_id", pa.binary(16)), ("slot", pa.uint32()), ("value", pa.binary(width))])
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for part in np.array_split(np.arange(len(given)), batches):
            arrays = [pa.array([given[i][c] for i in part], kind) for c, kind in enumerate(schema.types)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return stream.getvalue()


def refusal(read: Any, of: Shape, body: bytes, most: int = MANY) -> Problem:
    with pytest.raises(Problem) as caught:
        read(of, body, most)
    return caught.value


FORMS = [(reports.from_json, columns), (reports.from_octets, octets), (reports.from_arrow, arrow)]


class TestEveryForm:
    @pytest.mark.parametrize("of", [GRR, SS])
    @pytest.mark.parametrize(("read", "write"), FORMS)
    @pytest.mark.parametrize("n_reports", [1, 2, 1000])
    def test_packs_the_same(self, of: Shape, read: Any, write: Any, n_reports: int) -> None:
        given = rows(of, n_reports)
        packed = read(of, write(given), MANY)
        assert (packed.n_reports, packed.data) == (n_reports, octets(given))

    @pytest.mark.parametrize("of", [GRR, SS])
    def test_of_one_report_packs_the_same(self, of: Shape) -> None:
        ((report_id, slot, value),) = given = rows(of, 1)
        body = {"report_id": report_id.hex(), "slot": slot, "value": base64.b64encode(value).decode()}
        packed = reports.from_json(of, json.dumps(body).encode(), MANY)
        assert (packed.n_reports, packed.data) == (1, octets(given))

    @pytest.mark.parametrize("of", [GRR, SS])
    @pytest.mark.parametrize(("read", "write"), FORMS)
    @pytest.mark.parametrize("bad", [0, 1, 6, 9])
    @pytest.mark.parametrize("what", ["slot", "value"])
    def test_names_the_first_bad_report(self, of: Shape, read: Any, write: Any, bad: int, what: str) -> None:
        given = rows(of, 10)
        for place in (bad, 9):
            report_id, slot, value = given[place]
            given[place] = (report_id, 9, value) if what == "slot" else (report_id, slot, b"\xff" * len(value))
        problem = refusal(read, of, write(given))
        assert isinstance(problem, ReportMalformed)
        assert problem.more["index"] == bad
        assert what in problem.detail

    @pytest.mark.parametrize("bad", [0, 70_000])
    def test_names_it_however_far_down(self, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_CHUNK_BYTES", 1 << 16)
        body = bytearray(octets(rows(GRR, 1)) * 100_000)
        body[bad * 21 + 20] = 5
        assert refusal(reports.from_octets, GRR, bytes(body)).more["index"] == bad

    @pytest.mark.parametrize(("read", "write"), FORMS)
    def test_takes_as_many_as_allowed_and_no_more(self, read: Any, write: Any) -> None:
        given = rows(GRR, 11)
        assert read(GRR, write(given), 11).n_reports == 11
        assert isinstance(refusal(read, GRR, write(given), 10), PayloadTooLarge)

    @pytest.mark.parametrize(("read", "write"), [*FORMS[:2], (reports.from_arrow, lambda _: arrow(rows(SS, 1)[:0]))])
    def test_of_no_reports_is_refused(self, read: Any, write: Any) -> None:
        assert isinstance(refusal(read, SS, write([])), ValidationFailed)

    @given(st.sampled_from([reports.from_json, reports.from_octets, reports.from_arrow]), st.binary(max_size=200))
    def test_of_noise_is_refused(self, read: Any, body: bytes) -> None:
        problem = refusal(read, SS, body)
        assert problem.status in (400, 413, 422)


class TestJson:
    ONE = {"report_id": "0" * 32, "slot": 0, "value": "AA=="}  # noqa: RUF012

    @pytest.mark.parametrize(
        "changed",
        [
            {"report_id": "0" * 31},
            {"report_id": "0" * 33},
            {"report_id": "A" * 32},
            {"report_id": "g" * 32},
            {"report_id": "00 " * 10 + "00"},
            {"report_id": 5},
            {"slot": 9},
            {"slot": -1},
            {"slot": 2**32},
            {"slot": 2**70},
            {"slot": 1.0},
            {"slot": "0"},
            {"slot": True},
            {"slot": None},
            {"value": ""},
            {"value": "AAA="},
            {"value": "AA"},
            {"value": "_w=="},
            {"value": "BQ=="},
            {"value": 0},
        ],
    )
    def test_a_report_that_cannot_be_is_malformed(self, changed: dict[str, Any]) -> None:
        problem = refusal(reports.from_json, GRR, json.dumps(self.ONE | changed).encode())
        assert isinstance(problem, ReportMalformed)
        assert problem.more["index"] == 0
        name, value = next(iter(changed.items()))
        assert name.split("_")[0] in problem.detail
        if len(str(value)) > 4:
            assert str(value) not in problem.detail

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("report_ids", "x" * 32),
            ("report_ids", 1),
            ("slots", 9),
            ("slots", "1"),
            ("values", "AAA="),
            ("values", "!"),
            ("values", 3),
        ],
    )
    def test_a_bad_one_in_columns_is_found(self, column: str, value: Any) -> None:
        body = json.loads(columns(rows(GRR, 5)))
        body[column][3] = value
        problem = refusal(reports.from_json, GRR, json.dumps(body).encode())
        assert isinstance(problem, ReportMalformed)
        assert problem.more["index"] == 3

    @pytest.mark.parametrize(
        "body",
        [
            {},
            [],
            5,
            None,
            {"report_id": "0" * 32, "slot": 0},
            {**ONE, "more": 1},
            {**ONE, "slots": [1]},
            {"report_ids": ["0" * 32], "slots": [0], "value": "AA=="},
            {"report_ids": ["0" * 32], "slots": [0, 0], "values": ["AA=="]},
            {"report_ids": "0" * 32, "slots": [0], "values": ["AA=="]},
        ],
    )
    def test_another_shape_is_no_report(self, body: Any) -> None:
        problem = refusal(reports.from_json, GRR, json.dumps(body).encode())
        assert isinstance(problem, ValidationFailed)
        assert problem.more["errors"]

    @pytest.mark.parametrize(
        "body", [b"", b"{", b'{"report_id":', b"\xff", b"nonsense", b"NaN", b'{"report_id": "\xbf"}']
    )
    def test_no_json_cannot_be_read(self, body: bytes) -> None:
        assert isinstance(refusal(reports.from_json, GRR, body), BadRequest)


class TestOctets:
    def test_cut_short_name_the_report_that_is_not_whole(self) -> None:
        body = octets(rows(SS, 10))
        for missing in (1, 22):
            problem = refusal(reports.from_octets, SS, body[:-missing])
            assert isinstance(problem, ReportMalformed)
            assert problem.more["index"] == 9

    def test_of_another_width_are_malformed(self) -> None:
        problem = refusal(reports.from_octets, SS, octets(rows(GRR, 10)))
        assert isinstance(problem, ReportMalformed)


class TestArrow:
    def test_may_come_in_batches(self) -> None:
        given = rows(SS, 100)
        assert reports.from_arrow(SS, arrow(given, batches=7), MANY).data == octets(given)

    def test_names_a_bad_report_in_a_later_batch(self) -> None:
        given = rows(SS, 100)
        given[77] = (given[77][0], 9, given[77][2])
        assert refusal(reports.from_arrow, SS, arrow(given, batches=7)).more["index"] == 77

    def test_may_order_its_columns_as_it_likes(self) -> None:
        given = rows(SS, 5)
        table = pa.ipc.open_stream(arrow(given)).read_all().select(["value", "report_id", "slot"])
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        assert reports.from_arrow(SS, stream.getvalue(), MANY).data == octets(given)

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_is_refused_compressed_before_it_is_unpacked(self, compression: str) -> None:
        body = arrow([(b"\0" * 16, 0, b"\0" * 3)] * 200_000, compression=compression)
        assert len(body) < 200_000
        problem = refusal(reports.from_arrow, SS, body)
        assert isinstance(problem, ValidationFailed)
        assert "compressed" in problem.detail

    @pytest.mark.parametrize(
        "schema",
        [
            {"report_id": pa.binary(16), "slot": pa.uint32()},
            {"report_id": pa.binary(16), "slot": pa.uint32(), "value": pa.binary(2)},
            {"report_id": pa.binary(16), "slot": pa.int32(), "value": pa.binary(3)},
            {"report_id": pa.binary(), "slot": pa.uint32(), "value": pa.binary(3)},
            {"report_id": pa.binary(16), "slot": pa.uint32(), "value": pa.binary(3), "more": pa.int8()},
        ],
    )
    def test_has_the_three_columns_and_no_other(self, schema: dict[str, pa.DataType]) -> None:
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, pa.schema(list(schema.items()))):
            pass
        assert isinstance(refusal(reports.from_arrow, SS, stream.getvalue()), ValidationFailed)

    def test_holds_no_nulls(self) -> None:
        batch = pa.record_batch(
            {
                "report_id": pa.array([b"\0" * 16], pa.binary(16)),
                "slot": pa.array([None], pa.uint32()),
                "value": pa.array([b"\0" * 3], pa.binary(3)),
            }
        )
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        assert isinstance(refusal(reports.from_arrow, SS, stream.getvalue()), ValidationFailed)

    @pytest.mark.parametrize("cut", [1, 9, 40, 200, 1000])
    def test_cut_short_cannot_be_read(self, cut: int) -> None:
        body = arrow(rows(SS, 100))
        problem = refusal(reports.from_arrow, SS, body[: len(body) - 8 - cut])  # 8: the end mark, which may be left out
        assert isinstance(problem, BadRequest | ValidationFailed)
