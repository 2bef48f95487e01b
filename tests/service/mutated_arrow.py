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
from typing import Any

import numpy as np
import pyarrow as pa

from service import arrow
from service.problems import Problem, ValidationFailed

# columns x, y, u of three records, with four octets changed: its first message says that it is no schema
NO_SCHEMA = zlib.decompress(
    b85decode(
        "c-nPQF^<A85S+wLKqy5DbfV=4NIbxld;@A)B<Og+ec<i~bhKArbBCa!fsP0806H_f*$9Y~k=C1;9q-ysj4}QJC?V*fK+fFd7m;{!"
        "VO_4?R=_b9jFItOj2oIW=`k=(w=<T?y=rI9qUyxgfAb|+Gw-#Y@+^JM%F)s3rJb$X*X+NdPrSJ*DcB<3t-qka2WuHUg?5AU+GC0u"
        "J@P_tCwKm|w{Uo(gLVuWxlJE6>NPJdPb~Wvk87L*ZG8CT-(P~CQ04z{JP2-KtT>r|36=XA>UT_S_H6#U6)oz&03Kl3ICT"
    )
)
FEATURES, USER = ("x", "y"), "u"


def written(**columns: Any) -> bytes:
    """A whole stream."""
    table, file = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def read_records(body: bytes) -> None:
    """As an upload's."""

    def places(names: Sequence[str]) -> list[int]:
        if sorted(names) != sorted([*FEATURES, USER]):
            raise ValidationFailed
        return [names.index(name) for name in (*FEATURES, USER)]

    for _ in arrow.records(body, places, len(FEATURES)):
        pass


def read_reports(body: bytes) -> None:
    """As devices'."""
    for _ in arrow.batches(body, 1):
        pass


STREAMS: dict[Callable[[bytes], None], bytes] = {
    read_records: written(x=[0.1, 0.2, 0.9], y=[0.3, 0.4, 0.5], u=["a", "b", "é"]),
    read_reports: written(
        report_id=pa.array([b"1" * 16], pa.binary(16)),
        slot=pa.array([1], pa.uint32()),
        value=pa.array([b"\1"], pa.binary(1)),
    ),
}


def outcome(read: Callable[[bytes], None], body: bytes) -> str:
    """What became of a stream: the name of whatever else is raised would be an error of the reader's."""
    try:
        read(body)
    except Problem:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def mutated(body: bytes, chance: np.random.Generator) -> bytes:
    """The stream with up to six octets changed, and the end it needs."""
    changed = bytearray(body)
    for place in chance.integers(8, len(changed) - 8, chance.integers(1, 7)).tolist():
        flipped = changed[place] ^ 1 << int(chance.integers(8))
        changed[place] = (0, 1, 128, 255, int(chance.integers(256)), flipped)[chance.integers(6)]
    return bytes(changed)


def main(n_streams: int, seed: int) -> None:
    """Read so many of each."""
    found: dict[str, Counter[str]] = {}
    for read, whole in STREAMS.items():
        chance = np.random.default_rng(seed)
        assert outcome(read, whole) == "read"
        assert outcome(read, NO_SCHEMA) == "refused"
        found[read.__name__] = Counter(outcome(read, mutated(whole, chance)) for _ in range(n_streams))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
