"""Exceptions in logs without their messages, which may quote private values."""

import json
import logging
import os
import traceback
from types import TracebackType
from typing import TextIO

_FORMAT = "%(levelname)s %(name)s: %(message)s"
_MAX_FRAMES = 20


def describe(error: BaseException) -> dict[str, object]:
    """Return log fields for an exception: its type, its cause's type, and the frames.

    The message is left out because it may quote private values, such as the parameters of a statement. Frames of
    installed packages are left out, except the last one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames[:-1] if "site-packages" not in frame.filename]
    return {
        "error": type(error).__name__,
        "cause": type(error.__cause__).__name__ if error.__cause__ else None,
        "frames": [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in (*own, *frames[-1:])][-_MAX_FRAMES:],
    }


class _Formatter(logging.Formatter):
    def formatException(  # noqa: N802 - the name of the base class
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "" if ei[1] is None else json.dumps(describe(ei[1]))


def log_libraries(stream: TextIO, level: int) -> None:
    """Write the records of other libraries from this level on. An exception has the fields of `describe`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(handlers=[handler], level=level)
