"""Lists in a JSON object: decoding in pieces of any length gives the same result as decoding the whole."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from service.http.problems import BadRequest, ValidationFailed
from service.ingestion import json_pieces
from service.ingestion.json_pieces import JsonPieces

ELEMENTS = st.text(max_size=6) | st.sampled_from(["]", "[", ",", "\\", '"', "a\\", '","', "}", "{:"])
OBJECTS = st.fixed_dictionaries(
    {}, optional={"texts": st.lists(ELEMENTS, max_size=30), "rows": st.lists(st.lists(st.integers(0, 99), max_size=4))}
)


class Lists(msgspec.Struct, forbid_unknown_fields=True):
    texts: list[str] | UnsetType = UNSET
    rows: list[list[float]] | UnsetType = UNSET


def read(body: bytes, *cuts: int, reserve: Callable[[int], None] = lambda _: None) -> dict[str, list[Any]]:
    """Return the object of a body that arrives in pieces."""
    found: dict[str, list[Any]] = {}

    def take(_reader: JsonPieces, piece: Lists) -> None:
        for name in ("texts", "rows"):
            if (part := getattr(piece, name)) is not UNSET:
                found.setdefault(name, []).extend(part)

    reader = JsonPieces(Lists, take, lambda *_: ValidationFailed("wrong type"), reserve)
    ends = [*sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(body[start:end])
    reader.finish()
    return found


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 16)


class TestPieces:
    @given(OBJECTS, st.lists(st.integers(0, 200), max_size=6), st.booleans(), st.sampled_from([None, 2]))
    def test_equal_the_whole(
        self, value: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None
    ) -> None:
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
        assert read(text, *cuts) == value
        assert read(b"\xef\xbb\xbf" + text, *cuts) == value

    @given(OBJECTS, st.integers(0, 200), st.sampled_from([b"", b",", b"]", b"}", b'"', b"[", b"x", b"0,"]))
    def test_are_refused_if_the_whole_is(self, value: dict[str, Any], at: int, more: bytes) -> None:
        text = json.dumps(value).encode()
        at = min(at, len(text))
        changed = text[:at] + more + text[at + (not more) :]
        try:
            whole = msgspec.json.decode(changed, type=Lists)
        except (msgspec.DecodeError, UnicodeDecodeError):
            with pytest.raises((BadRequest, ValidationFailed)):
                read(changed)
        else:
            assert read(changed) == {
                name: part for name, part in msgspec.structs.asdict(whole).items() if part is not UNSET
            }

    @pytest.mark.parametrize(
        "body",
        [
            b'{"rows":[[1],[2],[3],[4],[5],[6],]}',
            b'{"rows":[[1]],"rows":[[2]]}',
            b'{"rows":[[1],[2],[3],[4],[5]],"texts":["a"],"rows":[[2]]}',
            b'{"rows":[],"texts":[],"others":[]}',
            b'{"rows":[[[[1]]]]}',
            b"[" * 100,
            b'{"rows":[[1],[2],[3],[4]]} {"rows":[[1],[2],[3]]}',
            b'{"rows":[NaN]}',
            b"",
        ],
    )
    def test_must_form_one_object_with_each_member_once(self, body: bytes) -> None:
        with pytest.raises((BadRequest, ValidationFailed)):
            read(body)

    def test_have_elements_of_limited_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_pieces, "MAX_ELEMENT_BYTES", 64)
        assert read(b'{"texts":["%b"]}' % (b"x" * 20)) == {"texts": ["x" * 20]}
        with pytest.raises(BadRequest, match="too long"):
            read(b'{"rows":[[%b1]]}' % (b"1," * 100))

    def test_reserve_the_text_of_an_incomplete_element(self) -> None:
        reserved: list[int] = []
        cuts = range(0, 4000, 100)
        read(b'{"rows":[%b]}' % b",".join([b"[1]"] * 1000), *cuts, reserve=reserved.append)
        assert sum(reserved) <= 2 * 100  # whole elements are not kept
        reserved.clear()
        read(b'{"texts":["%b"]}' % (b"x" * 3000), *cuts, reserve=reserved.append)
        assert 3000 - 16 <= sum(reserved) <= 3012
