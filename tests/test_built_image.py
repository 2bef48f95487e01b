"""The image itself: built from the Dockerfile with buildah, and run with the user and environment that it declares.

`make image` runs these tests, as root on Debian. They are slow, and the tests of the code exclude them.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_image import PROBE, USER
from tools.check_demo import MIN_REPORTS
from tools.image import MAX_LAYER_MB, Image, built_image, first_process

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]  # the first test includes the build

PYTHON = ["python", "-c"]
LINKED = """
import json, pathlib, subprocess, sysconfig
libraries = list(pathlib.Path(sysconfig.get_path("platlib")).rglob("*.so*"))
missing = set()
for path in libraries:
    found = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
    missing |= {line.split()[0] for line in found.splitlines() if "not found" in line}
print(json.dumps(sorted(missing - {path.name for path in libraries})))  # loaded before, by the library of the package
"""
NOT_IN_WHEELS = {
    "libtbb.so.12",
    "libgomp.so.1",
    "libgomp.so.1.0.0",
}  # the threading layers of numba, which no kernel uses

KERNELS = """
import json, os
from workers.kernels import cache
installed = cache.install_kernels(os.environ)  # numba reads the environment when it is imported
from numba.core import caching
from workers.kernels import warmup
saved = []
caching.Cache.save_overload = lambda self, *_: saved.append(self._name)
warmed = warmup.warm_up()
print(json.dumps({"installed": installed, "warmed": len(warmed), "compiled": saved}))
"""

ARROW = """
import pyarrow as pa
from models.collection.report_log import ID_BYTES
from service.ingestion import arrow
columns = {"report_id": pa.array([b"x" * ID_BYTES], pa.binary(ID_BYTES)), "slot": pa.array([5], pa.uint32()),
           "value": pa.array([b"abc"], pa.binary(3))}
batch = pa.record_batch(columns)
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, batch.schema) as writer:
    writer.write_batch(batch)
(rows,) = arrow.parse_reports(sink.getvalue().to_pybytes(), 3)
print(bytes(rows[2]).decode())
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built_image() as image:
        yield image


class TestTheBuild:
    def test_stays_below_its_size(self, image: Image) -> None:
        assert 300 < image.layer_bytes / 1e6 <= MAX_LAYER_MB

    def test_leaves_nothing_of_itself(self, image: Image) -> None:
        assert [path.name for path in (image.root / "opt").iterdir()] == ["sfumato"]
        assert [*(image.root / "var/lib/sfumato").iterdir(), *(image.root / "tmp").iterdir()] == []
        assert list((image.root / "opt/sfumato/lib").rglob("pip")) == []

    def test_keeps_every_licence(self, image: Image) -> None:
        packages = [path for path in image.root.glob("opt/sfumato/lib/*/site-packages/*.dist-info") if path.is_dir()]
        assert len(packages) > 60
        for package in packages:
            assert (package / "METADATA").exists(), package.name

    def test_keeps_every_library_that_another_one_needs(self, image: Image) -> None:
        assert set(json.loads(image.run(LINKED, entrypoint=PYTHON))) <= NOT_IN_WHEELS


class TestTheContainer:
    def test_is_unprivileged_on_a_read_only_root(self, image: Image) -> None:
        probe = PROBE.replace('os.environ["PYTHONPATH"].split(os.pathsep)[0]', '"/opt/sfumato"')
        found = json.loads(image.run(probe, entrypoint=PYTHON))
        assert image.user == str(USER) == str(found["user"])
        assert found["writable"] == [True, True]
        assert found["read_only"] == [True] * 5
        assert found["capabilities"] == [0, 0]

    def test_loads_every_kernel_without_compiling(self, image: Image) -> None:
        found = json.loads(image.run(KERNELS, entrypoint=PYTHON).splitlines()[-1])
        assert found["installed"] is True
        assert found["warmed"] >= 15
        assert found["compiled"] == []

    def test_reads_arrow_streams(self, image: Image) -> None:
        assert image.run(ARROW, entrypoint=PYTHON).strip() == "abc"

    def test_runs_the_demo_without_a_network(self, image: Image) -> None:
        # The CI stage "demo" checks the quality of the clusters, which depends on the noise.
        summary = json.loads(image.run("demo", "--json").splitlines()[-1])
        assert summary["reports"] >= MIN_REPORTS
        assert summary["ledger_verified"] is True
        assert 0 < float(summary["epsilon_charged"]) <= float(summary["epsilon_granted"])
        assert summary["ari_vs_unperturbed"] > 0.7

    def test_is_healthy_while_it_serves(self, image: Image) -> None:
        assert image.config["Cmd"] == ["serve"]
        process = image.start("serve", stdout=subprocess.PIPE)
        try:
            began = time.monotonic()
            while not image.is_healthy(process):
                assert time.monotonic() - began < 60
                time.sleep(0.5)
            first = first_process(process)
            assert first is not None
            assert Path(f"/proc/{first}").stat().st_uid == USER
            os.kill(first, signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.communicate()

    def test_is_unhealthy_without_a_service(self, image: Image) -> None:
        process = image.start("-c", "import time; time.sleep(60)", entrypoint=["python"])
        try:
            while first_process(process) is None:
                time.sleep(0.1)
            assert not image.is_healthy(process)
        finally:
            process.kill()
            process.wait()
