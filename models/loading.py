"""Loads much code at once, faster."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage meanwhile, nor ever again among what was there at the end.

    Modules, classes and schemas stay as long as the process. To go through them again and again takes an eighth of the
    time of a gateway's start, and later a pause at every full collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
