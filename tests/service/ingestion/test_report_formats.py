"""All formats give the same packed reports, and errors name the first invalid report."""

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

from service.http.problems import BadRequest, PayloadTooLarge, Problem, ReportMalformed, ValidationFailed
from service.ingestion import report_formats
from service.ingestion.report_formats import ReportFormat
from sfumato import mechanisms
from sfumato.specs import Mechanism

MANY = 1_000_000


def shape(mechanism: Mechanism, n_slots: int = 9) -> ReportFormat:
    return ReportFormat("rnd", "ds", "ten", mechanism, n_slots, mechanism.value_bytes)


GRR = shape(mechanisms.design("grr", 5, 1_000_000_000))
SS = shape(mechanisms.design("ss", 20, 1_000_000_000))


def a_value(of: ReportFormat, number: int) -> bytes:
    if of is GRR:
        return bytes([number % 5])
    size = of.mechanism.subset_size  # type: ignore[union-attr]
    bits = ((1 << size) - 1) << (number % (20 - size + 1))
    return bits.to_bytes(3, "little")


Rows = list[tuple[bytes, int, bytes]]


def rows(of: ReportFormat, n_reports: int) -> Rows:
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


def write_stream(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def refusal(read: Any, of: ReportFormat, body: bytes, most: int = MANY) -> Problem:
    """Return the problem of an invalid body."""
    with pytest.raises(Problem) as caught:
        read(of, body, most)
    return caught.value


FORMS = [
    (report_formats.parse_json, columns),
    (report_formats.parse_octets, octets),
    (report_formats.parse_arrow, arrow),
]


class TestAllFormats:
    @pytest.mark.parametrize("of", [GRR, SS])
    @pytest.mark.parametrize(("read", "write"), FORMS)
    @pytest.mark.parametrize("n_reports", [1, 2, 1000])
    def test_give_the_same_packed_reports(self, of: ReportFormat, read: Any, write: Any, n_reports: int) -> None:
        given = rows(of, n_reports)
        packed = read(of, write(given), MANY)
        assert (packed.n_reports, packed.data) == (n_reports, octets(given))

    @pytest.mark.parametrize("of", [GRR, SS])
    def test_give_the_same_packed_report_for_one(self, of: ReportFormat) -> None:
        ((report_id, slot, value),) = reports = rows(of, 1)
        body = {"report_id": report_id.hex(), "slot": slot, "value": base64.b64encode(value).decode()}
        result = report_formats.parse_json(of, json.dumps(body).encode(), MANY)
        assert (result.n_reports, result.data) == (1, octets(reports))

    @pytest.mark.parametrize("of", [GRR, SS])
    @pytest.mark.parametrize(("read", "write"), FORMS)
    @pytest.mark.parametrize("bad", [0, 1, 6, 9])
    @pytest.mark.parametrize("what", ["slot", "value"])
    def test_name_the_first_invalid_report(self, of: ReportFormat, read: Any, write: Any, bad: int, what: str) -> None:
        given = rows(of, 10)
        for place in (bad, 9):
            report_id, slot, value = given[place]
            given[place] = (report_id, 9, value) if what == "slot" else (report_id, slot, b"\xff" * len(value))
        problem = refusal(read, of, write(given))
        assert isinstance(problem, ReportMalformed)
        assert problem.more["index"] == bad
        assert what in problem.detail

    @pytest.mark.parametrize("bad", [0, 70_000])
    def test_name_an_invalid_report_in_a_late_chunk(self, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report_formats, "_CHUNK_BYTES", 1 << 16)
        body = bytearray(octets(rows(GRR, 1)) * 100_000)
        body[bad * 21 + 20] = 5
        assert refusal(report_formats.parse_octets, GRR, bytes(body)).more["index"] == bad

    @pytest.mark.parametrize(("read", "write"), FORMS)
    def test_limit_the_number_of_reports(self, read: Any, write: Any) -> None:
        given = rows(GRR, 11)
        assert read(GRR, write(given), 11).n_reports == 11
        assert isinstance(refusal(read, GRR, write(given), 10), PayloadTooLarge)

    @pytest.mark.parametrize(
        ("read", "write"), [*FORMS[:2], (report_formats.parse_arrow, lambda _: arrow(rows(SS, 1)[:0]))]
    )
    def test_reject_an_empty_request(self, read: Any, write: Any) -> None:
        assert isinstance(refusal(read, SS, write([])), ValidationFailed)

    @given(
        st.sampled_from([report_formats.parse_json, report_formats.parse_octets, report_formats.parse_arrow]),
        st.binary(max_size=200),
    )
    def test_reject_random_bytes(self, read: Any, body: bytes) -> None:
        problem = refusal(read, SS, body)
        assert problem.status in (400, 413, 422)


class TestJson:
    ONE = {"report_id": "0" * 32, "slot": 0, "value": "AA=="}  # noqa: RUF012
    BAD = {  # noqa: RUF012
        "report_id": ["0" * 31, "0" * 33, "A" * 32, "g" * 32, "00 " * 10 + "00", 5],
        "slot": [9, -1, 2**32, 2**70, 1.0, "0", True, None],
        "value": ["", "AAA=", "AA", "_w==", "BQ==", 0],
    }

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
    def test_rejects_an_invalid_report(self, name: str, value: Any) -> None:
        problem = refusal(report_formats.parse_json, GRR, json.dumps(self.ONE | {name: value}).encode())
        assert isinstance(problem, ReportMalformed)
        assert problem.more["index"] == 0
        assert name.split("_")[0] in problem.detail
        if len(str(value)) > 4:
            assert str(value) not in problem.detail

    def test_finds_an_invalid_report_in_columns(self) -> None:
        for column, values in {"report_ids": ["x" * 32, 1], "slots": [9, "1"], "values": ["AAA=", "!", 3]}.items():
            for value in values:
                body = json.loads(columns(rows(GRR, 5)))
                body[column][3] = value
                problem = refusal(report_formats.parse_json, GRR, json.dumps(body).encode())
                assert isinstance(problem, ReportMalformed)
                assert problem.more["index"] == 3

    @pytest.mark.parametrize(
        "body",
        [
            *({}, [], 5, None, {"report_id": "0" * 32, "slot": 0}, {**ONE, "more": 1}, {**ONE, "slots": [1]}),
            {"report_ids": ["0" * 32], "slots": [0], "value": "AA=="},
            {"report_ids": ["0" * 32], "slots": [0, 0], "values": ["AA=="]},
            {"report_ids": "0" * 32, "slots": [0], "values": ["AA=="]},
        ],
    )
    def test_rejects_other_objects(self, body: Any) -> None:
        problem = refusal(report_formats.parse_json, GRR, json.dumps(body).encode())
        assert isinstance(problem, ValidationFailed)
        assert problem.more["errors"]

    def test_rejects_invalid_json(self) -> None:
        for body in (b"", b"{", b'{"report_id":', b"\xff", b"nonsense", b"NaN", b'{"report_id": "\xbf"}'):
            assert isinstance(refusal(report_formats.parse_json, GRR, body), BadRequest)


class TestOctets:
    def test_name_a_truncated_report(self) -> None:
        body = octets(rows(SS, 10))
        for missing in (1, 22):
            problem = refusal(report_formats.parse_octets, SS, body[:-missing])
            assert isinstance(problem, ReportMalformed)
            assert problem.more["index"] == 9

    def test_of_another_width_are_rejected(self) -> None:
        problem = refusal(report_formats.parse_octets, SS, octets(rows(GRR, 10)))
        assert isinstance(problem, ReportMalformed)


class TestArrow:
    GOOD = {"report_id": pa.binary(16), "slot": pa.uint32(), "value": pa.binary(3)}  # noqa: RUF012

    def test_accepts_several_batches_and_any_column_order(self) -> None:
        reports = rows(SS, 100)
        assert report_formats.parse_arrow(SS, arrow(reports, batches=7), MANY).data == octets(reports)
        table = pa.ipc.open_stream(arrow(reports)).read_all().select(["value", "report_id", "slot"])
        assert report_formats.parse_arrow(SS, write_stream(table), MANY).data == octets(reports)
        reports[77] = (reports[77][0], 9, reports[77][2])
        assert refusal(report_formats.parse_arrow, SS, arrow(reports, batches=7)).more["index"] == 77

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_rejects_compression_before_decompressing(self, compression: str) -> None:
        body = arrow([(b"\0" * 16, 0, b"\0" * 3)] * 20_000, compression=compression)
        assert len(body) < 20_000
        problem = refusal(report_formats.parse_arrow, SS, body)
        assert isinstance(problem, ValidationFailed)
        assert "compressed" in problem.detail

    @pytest.mark.parametrize(
        ("changes", "messages"),
        [
            (
                {"value": pa.binary(2)},
                ["column value has the type fixed_size_binary[2]: it must have the type fixed_size_binary[3]"],
            ),
            ({"slot": pa.int32()}, ["column slot has the type int32: it must have the type uint32"]),
            (
                {"report_id": pa.binary()},
                ["column report_id has the type binary: it must have the type fixed_size_binary[16]"],
            ),
            ({"more": pa.int8(), "4711": pa.int8()}, ["column more is", "column 5 (counted from 1) is"]),
            ({"value": None, "values": pa.binary(3)}, ["column value is missing: add it", "column values is"]),
        ],
    )
    def test_rejects_other_columns(self, changes: dict[str, Any], messages: list[str]) -> None:
        columns = {name: kind for name, kind in (self.GOOD | changes).items() if kind is not None}
        table = pa.schema(list(columns.items())).empty_table()
        problem = refusal(report_formats.parse_arrow, SS, write_stream(table))
        found = [error["message"].removesuffix(" not declared: remove it") for error in problem.more["errors"]]
        assert (problem.code, found) == ("validation_failed", messages)

    def test_rejects_more_after_the_end(self) -> None:
        body = arrow(rows(SS, 5))
        for more in (body, b"rubbish", b"\0"):
            problem = refusal(report_formats.parse_arrow, SS, body + more)
            assert isinstance(problem, BadRequest)
            assert "after the end" in problem.detail or "not a valid Arrow" in problem.detail

    def test_rejects_nulls(self) -> None:
        values = {"report_id": b"\0" * 16, "slot": None, "value": b"\0" * 3}
        table = pa.table({name: pa.array([values[name]], kind) for name, kind in self.GOOD.items()})
        assert isinstance(refusal(report_formats.parse_arrow, SS, write_stream(table)), ValidationFailed)

    def test_rejects_a_truncated_stream(self) -> None:
        body = arrow(rows(SS, 100))[:-8]  # without the end mark, which may be left out
        for cut in (1, 9, 40, 200, 1000):
            problem = refusal(report_formats.parse_arrow, SS, body[:-cut])
            assert isinstance(problem, BadRequest | ValidationFailed)
