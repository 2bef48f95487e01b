"""Server of a peer's process (`benchmarks.peers.peer`): calls functions of a file by lines of JSON on stdin.

It imports only numpy and the standard library.
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
    """Respond to each line of stdin until it ends."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries apart from responses
    functions: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            functions = functions or _load(functions_file)
            response = _execute(json.loads(line), functions, stored, Path(folder))
        except Exception:
            response = {"error": traceback.format_exc()}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


def _load(functions_file: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("peer_functions", functions_file)
    assert spec is not None  # exists for a file of Python
    assert spec.loader is not None
    module = sys.modules["peer_functions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def _execute(
    request: dict[str, Any], functions: dict[str, Any], stored: dict[str, Any], folder: Path
) -> dict[str, Any]:
    if "send" in request:
        stored[request["send"]] = np.load(request["path"], allow_pickle=False)
        return {}
    if "version" in request:
        return {"plain": metadata.version(request["version"])}
    function = functions[request["call"]]
    arrays = [stored[name] for name in request["names"]]
    gc.collect()
    began = time.perf_counter()
    value = function(*arrays, **request["plain"])
    seconds = time.perf_counter() - began
    kind = "array" if isinstance(value, np.ndarray) else "tuple" if isinstance(value, tuple) else "plain"
    given = {"array": [value], "tuple": value, "plain": []}[kind]
    paths = [folder / f"result-{place}.npy" for place in range(len(given))]
    for path, array in zip(paths, given, strict=True):
        np.save(path, np.asarray(array), allow_pickle=False)
    plain = value if kind == "plain" else None
    return {"seconds": seconds, "kind": kind, "arrays": [str(path) for path in paths], "plain": plain}


if __name__ == "__main__":
    main(*sys.argv[1:])
