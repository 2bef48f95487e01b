"""Reads Arrow streams with octets changed, in a process of its own: the reader is not Python, and may end it.

Prints how many were read, how many refused, and what else happened, by reader.
"""

import io
import json
import sys
import zlib
from base64 import b85decode
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from service.http.problems import Problem, ValidationFailed
from service.ingestion import arrow
from tests.service.ingestion.test_records import POLARS_FILE

# columns x, y, u of three records, with four octets changed: its first message claims not to be a schema
NO_SCHEMA = zlib.decompress(
    b85decode(
        "c-nPQF^<A85S+wLKqy5DbfV=4NIbxld;@A)B<Og+ec<i~bhKArbBCa!fsP0806H_f*$9Y~k=C1;9q-ysj4}QJC?V*fK+fFd7m;{!"
        "VO_4?R=_b9jFItOj2oIW=`k=(w=<T?y=rI9qUyxgfAb|+Gw-#Y@+^JM%F)s3rJb$X*X+NdPrSJ*DcB<3t-qka2WuHUg?5AU+GC0u"
        "J@P_tCwKm|w{Uo(gLVuWxlJE6>NPJdPb~Wvk87L*ZG8CT-(P~CQ04z{JP2-KtT>r|36=XA>UT_S_H6#U6)oz&03Kl3ICT"
    )
)
FEATURES, USERS = ("x", "y"), ("u", "who")


def written(*, is_file: bool = False, **columns: Any) -> bytes:
    """Return a complete stream or file."""
    table, file = pa.table(columns), io.BytesIO()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def read_records(body: bytes) -> None:
    """Parse a stream as records."""

    def places(names: Sequence[str]) -> list[int]:
        for user in USERS:
            if sorted(names) == sorted([*FEATURES, user]):
                return [names.index(name) for name in (*FEATURES, user)]
        raise ValidationFailed

    for _ in arrow.parse_records(body, places, len(FEATURES)):
        pass


def read_vectors(body: bytes) -> None:
    """Parse a stream as records that are one column of lists."""

    def places(names: Sequence[str]) -> list[int]:
        if list(names) != list(FEATURES):
            raise ValidationFailed
        return [0, 1]

    for _ in arrow.parse_records(body, places, len(FEATURES), FEATURES):
        pass


def read_reports(body: bytes) -> None:
    """Parse a stream as reports."""
    for _ in arrow.parse_reports(body, 1):
        pass


ENTRIES = pa.array(["a", "b", "é" * 20], pa.string_view())
STREAMS: tuple[tuple[str, Callable[[bytes], None], bytes], ...] = (
    ("records", read_records, written(x=[0.1, 0.2, 0.9], y=[0.3, 0.4, 0.5], u=["a", "b", "é"])),
    (
        "records of other types",
        read_records,
        written(
            is_file=True,
            x=pa.array([1, 2, 1]).dictionary_encode(),
            y=pa.array([Decimal("0.37")] * 3, pa.decimal128(20, 2)),
            u=pa.DictionaryArray.from_arrays(pa.array([0, 2, 1], pa.int8()), ENTRIES),
        ),
    ),
    ("records of polars", read_records, POLARS_FILE),
    ("vectors", read_vectors, written(v=pa.array([[0.1, 0.2], [0.3, 0.4]], pa.large_list(pa.float32())))),
    ("vectors of fixed size", read_vectors, written(v=pa.array([[0.1, 0.2], [0.3, 0.4]], pa.list_(pa.float64(), 2)))),
    (
        "reports",
        read_reports,
        written(
            report_id=pa.array([b"1" * 16], pa.binary(16)),
            slot=pa.array([1], pa.uint32()),
            value=pa.array([b"\1"], pa.binary(1)),
        ),
    ),
)


def outcome(read: Callable[[bytes], None], body: bytes) -> str:
    """Return the outcome for a stream. Any unexpected exception is an error of the reader."""
    try:
        read(body)
    except Problem:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def mutated(body: bytes, chance: np.random.Generator) -> bytes:
    """Return the stream with up to six changed bytes and a valid end."""
    changed = bytearray(body)
    for place in chance.integers(8, len(changed) - 8, chance.integers(1, 7)).tolist():
        flipped = changed[place] ^ 1 << int(chance.integers(8))
        changed[place] = (0, 1, 128, 255, int(chance.integers(256)), flipped)[chance.integers(6)]
    return bytes(changed)


def main(n_streams: int, seed: int) -> None:
    """Parse this number of mutated streams of each kind."""
    found: dict[str, Counter[str]] = {}
    for name, read, whole in STREAMS:
        chance = np.random.default_rng(seed)
        assert outcome(read, whole) == "read"
        assert outcome(read, NO_SCHEMA) == "refused"
        found[name] = Counter(outcome(read, mutated(whole, chance)) for _ in range(n_streams))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
