"""Where a process writes its log: a line that cannot be written is lost, and nothing else.

The log may share a disk with the database, or be read by a collector that has died. What a full disk
or a broken pipe makes fail is then written to it, in the very moment in which nothing can be.
"""

from contextlib import suppress
from typing import TextIO


class LogStream:
    """A text stream that never fails.

    Parameters
    ----------
    stream : TextIO
        What is written to as long as that works; each line is tried anew.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; how much was given."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush."""
        with suppress(OSError, ValueError):
            self._stream.flush()
