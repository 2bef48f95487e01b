"""The duration of `import sfumato`, and its names."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import sfumato

MEASURE = """
import json, sys, time
began = time.process_time()  # which does not run while others have the core
import sfumato
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""

WITHOUT_CLIENT = """
import sys
for missing in ("httpx", "tenacity"):
    sys.modules[missing] = None
import sfumato
from sfumato import ClusterModel, Device, Feature, FileStore, MemoryStore, ShiftedGrid, perturb_records, mechanisms
from sfumato.specs import RoundSpec, GridEncoding
spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((4,)), mechanisms.design("grr", 4, 10**9))
print(len(perturb_records(spec, [[0.1], [0.9]]).slots))
"""


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


class TestImport:
    def test_is_fast_and_loads_no_large_package(self) -> None:
        runs = [json.loads(run(MEASURE)) for _ in range(3)]
        assert min(each["seconds"] for each in runs) <= 0.15  # the first may have to compile its modules
        assert not {"numpy", "httpx", "tenacity", "numba", "scipy", "matplotlib"} & set(runs[0]["modules"])

    def test_devices_need_no_http_until_they_send(self) -> None:
        assert run(WITHOUT_CLIENT) == "2\n"

    def test_precedes_a_directory_of_this_name_beside_the_script(self, tmp_path: Path) -> None:
        (tmp_path / "sfumato" / "docs").mkdir(parents=True)  # like a clone
        script = tmp_path / "script.py"
        script.write_text("from sfumato import Client; print(Client.__name__)")
        found = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, cwd=tmp_path)
        assert found.stdout == "Client\n"


class TestNames:
    def test_every_exported_name_exists(self) -> None:
        for name in sfumato.__all__:
            assert getattr(sfumato, name) is not None
            assert name in dir(sfumato)

    def test_every_name_is_in_its_module(self) -> None:
        for name, home in sfumato._homes().items():
            assert getattr(sfumato, name).__module__ == f"sfumato.{home}"

    def test_every_error_is_exported_and_documented(self) -> None:
        from sfumato import errors

        classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
        classes = {name for name in classes if issubclass(getattr(errors, name), Exception)}
        assert classes <= set(sfumato.__all__)
        assert all(issubclass(getattr(errors, name), errors.SfumatoError) for name in classes)
        assert errors.__doc__ is not None
        assert all(name in errors.__doc__ for name in classes)

    def test_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(AttributeError, match="telepathy"):
            sfumato.telepathy  # noqa: B018

    def test_has_the_version_of_the_wheel(self) -> None:
        assert isinstance(sfumato, ModuleType)
        pyproject = Path(__file__).parents[2] / "sdk" / "python" / "pyproject.toml"
        assert sfumato.__version__ == tomllib.loads(pyproject.read_text())["project"]["version"]
