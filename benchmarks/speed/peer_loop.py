"""Run by a peer's Python (`benchmarks.speed.peer`): has a file's functions called, as lines of JSON on stdin ask for.

Knows numpy and the standard library alone.
"""

import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np


def main(functions_file: str, folder: str) -> None:
    """Answer each line until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    functions: dict[str, Any] = {}
    held: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            functions = functions or _loaded(functions_file)
            told = _done(json.loads(line), functions, held, Path(folder))
        except Exception:
            told = {"error": traceback.format_exc()}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


def _loaded(functions_file: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("peer_functions", functions_file)
    assert spec is not None  # it is a file of Python
    assert spec.loader is not None
    module = sys.modules["peer_functions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def _done(order: dict[str, Any], functions: dict[str, Any], held: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "send" in order:
        held[order["send"]] = np.load(order["path"], allow_pickle=False)
        return {}
    if "version" in order:
        return {"plain": metadata.version(order["version"])}
    function = functions[order["call"]]
    arrays = [held[name] for name in order["names"]]
    gc.collect()
    began = time.perf_counter()
    value = function(*arrays, **order["plain"])
    seconds = time.perf_counter() - began
    kind = "array" if isinstance(value, np.ndarray) else "tuple" if isinstance(value, tuple) else "plain"
    given = {"array": [value], "tuple": value, "plain": []}[kind]
    paths = [folder / f"answer-{place}.npy" for place in range(len(given))]
    for path, array in zip(paths, given, strict=True):
        np.save(path, np.asarray(array), allow_pickle=False)
    plain = value if kind == "plain" else None
    return {"seconds": seconds, "kind": kind, "arrays": [str(path) for path in paths], "plain": plain}


if __name__ == "__main__":
    main(*sys.argv[1:])
