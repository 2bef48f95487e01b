"""Long lists in a JSON object, decoded in pieces, so that a body of any length takes little memory and time at once.

A body is an object with lists: `{"slots":[0,1,...],"values":[...]}`. It is cut after elements of these lists. A piece
is completed to an object of its own and decoded by msgspec: `{"slots":[0]}`, then `{"slots":[1],...}`. Decoding holds
the interpreter's lock, so the length of a piece bounds the delay of other requests.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from service.http.problems import BadRequest

PIECE_BYTES = 64 << 10  # text that is decoded at once
MAX_ELEMENT_BYTES = 256 << 10  # longest element of a list; the longest value of a report has 128 KiB, 171 in base64
_MAX_DEPTH = 3  # an object of lists of lists
_LIST_DEPTH = 2  # depth of the elements of a list
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")[ \t\r\n]*$', re.DOTALL)
_END = re.compile(rb"[ \t\r\n]*\]")
_STEP = np.zeros(256, dtype=np.int8)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1
_QUOTE, _COMMA, _COLON = b'",:'
_NESTING = b"[", b"]", b"{", b"}", b"\\"

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class JsonPieces:
    """Reader of an object with lists.

    Parameters
    ----------
    kind : type of msgspec.Struct
        Type of the object. All members are optional.
    take : callable
        Called with this reader and the decoded object of each piece. A bound method of the reader would keep it, and
        what it has read, until the next collection of garbage.
    explain : callable
        Called with this reader and the message of a `msgspec.ValidationError`, which may quote the body. Returns the
        problem.
    reserve : callable
        Called with the memory that the text of an incomplete element takes, in bytes.
    """

    def __init__(
        self,
        kind: type[msgspec.Struct],
        take: Callable[[Any, Any], None],
        explain: Callable[[Any, str], Exception],
        reserve: Callable[[int], None],
    ) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._names = kind.__struct_fields__
        self._take, self._explain, self._reserve = take, explain, reserve
        self._rest = bytearray()
        self._n_reserved = PIECE_BYTES  # a request reserves its first piece before it has a reader
        self._prefix = b""  # start of the next piece: it opens the object and the list again
        self._is_first = True
        self._n_members = 0
        self._seen: set[str] = set()
        self._decoded = b""  # the latest piece

    def feed(self, piece: bytes) -> None:
        """Decode the next piece of the body as far as it has whole elements."""
        self._rest += piece
        if len(self._rest) > self._n_reserved:
            self._reserve(len(self._rest) - self._n_reserved)
            self._n_reserved = len(self._rest)
        n_bytes = PIECE_BYTES
        while len(self._rest) >= n_bytes:
            if self._cut(n_bytes):
                n_bytes = PIECE_BYTES
            elif n_bytes >= MAX_ELEMENT_BYTES:
                raise BadRequest(f"an element of a list is too long: at most {MAX_ELEMENT_BYTES} bytes")
            else:
                n_bytes *= 2

    def finish(self) -> None:
        """Decode the rest."""
        text = self._text(len(self._rest))
        self._scan(text, is_last=True)
        self._decode_piece(text)

    def _text(self, n_bytes: int) -> bytes:
        """Return the first bytes of the rest, completed at their start."""
        if self._is_first:
            if self._rest.startswith(BOM_UTF8):
                del self._rest[: len(BOM_UTF8)]
        elif self._prefix and _END.match(self._rest):
            raise BadRequest("the body is not valid JSON: a list ends with a comma")
        return self._prefix + bytes(self._rest[:n_bytes])

    def _cut(self, n_bytes: int) -> bool:
        """Decode up to the last whole element in the first bytes of the rest. Return False if there is none."""
        text = self._text(n_bytes)
        end = self._scan(text)
        if end is None:
            return False
        self._decode_piece(text[:end] + b"]}")
        del self._rest[: end + 1 - self._n_prefix]
        self._is_first = False
        return True

    def _scan(self, text: bytes, *, is_last: bool = False) -> int | None:
        """Count the members in a piece, and return the position of the comma after its last whole element."""
        self._n_prefix = len(self._prefix)
        if not is_last and (comma := self._find_plain_comma(text)) is not None:
            return comma
        plain = _ESCAPE.sub(b"__", text) if b"\\" in text else text
        codes = np.frombuffer(plain, dtype=np.uint8)
        is_outside = np.cumsum(codes == _QUOTE, dtype=np.uint8) & 1 == 0  # modulo 256, which keeps the parity
        depths = np.cumsum(np.where(is_outside, _STEP[codes], 0), dtype=np.int32)
        if len(depths) and depths.max() > _MAX_DEPTH:
            raise BadRequest("the body is nested too deeply: expected an object with lists")
        is_key = is_outside & (depths == 1) & (codes == _COLON)
        commas = np.flatnonzero(is_outside & (depths == _LIST_DEPTH) & (codes == _COMMA))
        end = None if is_last or not len(commas) else int(commas[-1])
        keys = np.flatnonzero(is_key[:end])
        if end is None and not is_last:
            return None
        self._n_members += len(keys) - bool(self._prefix)
        if len(keys) and end is not None and (key := _find_key(text[: keys[-1]])):
            self._prefix = b"{%b:[" % key
        return end

    def _find_plain_comma(self, text: bytes) -> int | None:
        """Return the position of the last comma of a piece in the middle of a list of numbers or plain texts.

        Without brackets, braces and escapes, a piece has no member, and a comma ends an element if the number of
        quotation marks before it is even. Return None for any other piece.
        """
        if not self._prefix or any(text.find(octet, self._n_prefix) >= 0 for octet in _NESTING):
            return None
        comma = text.rfind(b",", self._n_prefix)
        return comma if comma > 0 and text.count(b'"', self._n_prefix, comma) % 2 == 0 else None

    def _decode_piece(self, text: bytes) -> None:
        self._decoded = text
        try:
            read = self._decode(text)
        except msgspec.ValidationError as error:
            raise self._explain(self, str(error)) from None
        except NOT_JSON:
            raise BadRequest("the body is not valid JSON (JSON has no NaN and no Infinity)") from None
        self._seen.update(name for name in self._names if getattr(read, name) is not msgspec.UNSET)
        if self._n_members > len(self._seen):
            raise BadRequest("the body has a member twice: send each member once")
        self._take(self, read)


def _find_key(text: bytes) -> bytes | None:
    """Return the key at the end of a text, with its quotation marks."""
    start = text.rstrip()[:-1].rfind(b'"')
    is_plain = start >= 0 and text[start - 1 : start] != b"\\"  # otherwise it may be a quotation mark of the key
    key = _KEY.match(text, start) if is_plain else _KEY.search(text)
    return key[1] if key else None
