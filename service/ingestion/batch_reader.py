"""Reader of the batch of a shuffled round, see `sfumato.transport.batches`.

The sealed reports are hashed and written to a temporary file as they arrive, so that a batch of any size takes little
memory. They are ciphertexts; the file is deleted with the request. The signature covers the whole batch and is verified
at its end, before anything is stored.
"""

import hashlib
import tempfile
from base64 import b64decode
from collections.abc import Iterator

from models.tables.datasets import Dataset
from models.tables.rounds import Round
from service.http.problems import BatchRefused, Unavailable
from service.ingestion.upload_memory import MemoryLimit, MemoryReservation
from sfumato.device.sealing import sealed_length
from sfumato.privacy.shuffling import MAX_HONEST
from sfumato.transport.batches import HEAD_BYTES, SIGNATURE_BYTES, verify_digest

MAX_TARGETS = 2  # most reports of a batch, as a multiple of the round's target
ROW_BYTES = 1 << 20  # sealed reports in one row of the report log


class BatchReader:
    """Reader of one batch.

    Parameters
    ----------
    found : Round
        A round of a shuffled dataset.
    dataset : Dataset
        Its dataset, which names the shuffler.
    scratch : MemoryLimit
        Limit on the temporary files of all batches together.
    declared : int, optional
        Stated length of the body in bytes.

    Raises
    ------
    BatchRefused
        The stated length is more than a batch of this round can have.
    Unavailable
        No temporary file can be created, or there is no room for the stated length.
    """

    def __init__(self, found: Round, dataset: Dataset, scratch: MemoryLimit, declared: int = 0) -> None:
        self.round_id, self.dataset_id = found.id, dataset.id
        self.count = 0  # number of sealed reports, known at the end
        self.body_digest = hashlib.sha256()  # `read_upload` adds the whole body
        self._min_batch = found.min_batch or 0
        self._length = sealed_length(found.spec.mechanism.value_bytes)
        self._public_key = b64decode((dataset.shuffler or {})["public_key"])
        self._head = bytearray()
        self._sealed_digest = hashlib.sha256()
        self._n_bytes = 0
        # Until a shuffler releases a full round, it accepts reports, so a batch may have more than the target.
        self._max_reports = min(MAX_TARGETS * found.target_reports, MAX_HONEST)
        self._check_size(declared - HEAD_BYTES)
        self._space = MemoryReservation(scratch)
        self._n_reserved = 0
        self._reserve(declared)
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        except OSError:
            self._space.__exit__()
            raise Unavailable("the batch cannot be stored now: send it again") from None

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._max_reports * self._length:
            raise BatchRefused(
                f"the batch is too long: a batch of this round has at most {self._max_reports} reports "
                f"of {self._length} bytes"
            )

    def _reserve(self, n_bytes: int) -> None:
        """Reserve scratch space for a body of this length."""
        if n_bytes > self._n_reserved:
            self._space.grow(n_bytes - self._n_reserved)
            self._n_reserved = n_bytes

    def feed(self, piece: bytes) -> None:
        """Read the next piece of the body. Raise BatchRefused if the head states another length."""
        n_missing = HEAD_BYTES - len(self._head)
        if n_missing > 0:
            self._head += piece[:n_missing]
            piece = piece[n_missing:]
            if len(self._head) == HEAD_BYTES:
                self._check_length(int.from_bytes(self._head[SIGNATURE_BYTES:], "big"))
        self._sealed_digest.update(piece)
        self._n_bytes += len(piece)
        self._check_size(self._n_bytes)
        self._reserve(self._n_bytes)
        try:
            self._file.write(piece)
        except OSError:
            raise Unavailable("the batch cannot be stored now: send it again") from None

    def _check_length(self, stated: int) -> None:
        if stated != self._length:
            raise BatchRefused(
                f"the batch states a length of {stated} bytes, "
                f"but a sealed report of this round has {self._length}: send reports of this length"
            )

    def finish(self) -> None:
        """Verify the whole batch. Raise BatchRefused."""
        if len(self._head) < HEAD_BYTES or self._n_bytes % self._length:
            raise BatchRefused("the batch is truncated: send a whole number of sealed reports")
        count = self._n_bytes // self._length
        signature = bytes(self._head[:SIGNATURE_BYTES])
        if not verify_digest(self.round_id, count, self._sealed_digest.digest(), signature, self._public_key):
            raise BatchRefused(
                "the signature is not valid: sign this round and these reports with the key that the dataset declares"
            )
        if count < self._min_batch:
            raise BatchRefused(
                f"the batch has {count} reports, at least {self._min_batch} are needed: release it later"
            )
        self.count = count

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the sealed reports in parts: their number and their bytes. A second call starts again."""
        n_per_row = max(1, ROW_BYTES // self._length)
        self._file.seek(0)
        while piece := self._file.read(n_per_row * self._length):
            yield len(piece) // self._length, piece

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()
        self._space.__exit__()
