"""The image's conditions without an engine: an unprivileged user, no home, a file system that cannot be written.

Where the tests run as root on Linux, the commands run in a mount namespace of their own: all of it
read-only but an empty /tmp and the data directory, as user 10001, without a capability. Elsewhere the
same commands run with the image's environment alone.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from devservers.loopback import NO_TLS
from sfumato.api.client import Client
from sfumato.device.bulk import perturb_records
from sfumato.specs import Feature, UniformGrid
from tests.service.processes import until

ROOT = Path(__file__).parents[1]
USER = 10001  # the Dockerfile's, and the manifests'
IS_CONFINED = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None

# Mount points below a fresh tmpfs on /mnt, since root's home and the checkout may be closed to others.
# Read-only comes last: nothing could be mounted after it.
CONFINE = """
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/python /mnt/packages /mnt/code /mnt/data
mount --bind "$BASE" /mnt/python
mount --bind "$PACKAGES" /mnt/packages
mount --bind "$CODE" /mnt/code
for place in /mnt/python /mnt/packages /mnt/code; do mount -o remount,bind,ro $place; done
mount -t tmpfs -o mode=0700,uid={user},gid={user} tmpfs /mnt/data
mount -o remount,ro /mnt
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -o remount,bind,ro /
cd /mnt/data
exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
"""


def dockerfile() -> list[str]:
    return (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def image_environment() -> dict[str, str]:
    """Return the settings of the last stage, except the path."""
    lines = dockerfile()[max(n for n, line in enumerate(dockerfile()) if line.startswith("FROM ")) :]
    words = [word for line in lines if line.startswith("ENV ") for word in shlex.split(line)[1:]]
    return {name: value for name, value in (word.split("=", 1) for word in words) if name != "PATH"}


class Image:
    """An environment that runs commands like the image."""

    def __init__(self, scratch: Path) -> None:
        self._log = scratch / "log"
        self.out = scratch / "out"
        packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        if IS_CONFINED:
            self._enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONFINE.format(user=USER), "-"]
            self._outside = {"BASE": sys.base_prefix, "PACKAGES": str(packages), "CODE": str(ROOT)}
            self._python, self.data = f"/mnt/python/bin/{version}", "/mnt/data"
            paths = ["/mnt/code", "/mnt/code/sdk/python", "/mnt/packages"]
        else:
            self._enter, self._outside = [], {}
            self._python, self.data = str(Path(sys.base_prefix) / "bin" / version), str(scratch / "data")
            Path(self.data).mkdir()
            paths = [str(ROOT), str(ROOT / "sdk" / "python"), str(packages)]
        self.environment = image_environment() | {
            "SFUMATO_HOME": self.data,
            "SFUMATO_HOST": "127.0.0.1",
            "SFUMATO_PORT": "0",
            "SFUMATO_WARM_KERNELS": "false",
            "PYTHONPATH": os.pathsep.join(paths),
            "HOME": str(scratch / "no home"),
        }
        if IS_CONFINED:  # a Python of a shared library of its own finds it by a path that is closed here
            self.environment["LD_LIBRARY_PATH"] = "/mnt/python/lib"

    def begin(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """`python ...` under the image's conditions; the namespace is entered by the same process."""
        told = [f"{name}={value}" for name, value in (self.environment | settings).items()]
        inside = ["env", "-i", *told, self._python, *arguments]
        with self._log.open("ab") as log, self.out.open("wb") as out:
            return subprocess.Popen(
                [*self._enter, *inside],
                env={"PATH": os.environ["PATH"], **self._outside},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    def run(self, *arguments: str, **settings: str) -> str:
        """Return the output of a successful command."""
        assert self.begin(*arguments, **settings).wait(600) == 0, self.log
        return self.out.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @contextmanager
    def running(self, *arguments: str, **settings: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a command and stop it gracefully at the end."""
        process = self.begin(*arguments, **settings)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(120)

    def url(self) -> str:
        """Return the address of the last command."""
        return str(until(lambda: re.search(r"Sfumato listens on (\S+)", self.out.read_text()))[1])


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


PROBE = """
import json, os
code = os.environ["PYTHONPATH"].split(os.pathsep)[0]
capabilities = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))]
print(json.dumps({
    "user": os.getuid(),
    "has_home": os.path.exists(os.environ["HOME"]),
    "writable": [os.access(path, os.W_OK) for path in ("/tmp", os.environ["SFUMATO_HOME"])],
    "read_only": [not os.access(path, os.W_OK) for path in ("/", "/usr", "/etc", code, os.path.dirname(os.__file__))],
    "capabilities": [int(one, 16) for one in capabilities],
}))
"""


class TestConditions:
    def test_are_those_of_the_image(self, image: Image) -> None:
        found = json.loads(image.run("-c", PROBE))
        assert found["has_home"] is False
        assert found["writable"] == [True, True]
        if IS_CONFINED:
            assert found["user"] == USER
            assert found["read_only"] == [True] * 5
            assert found["capabilities"] == [0, 0]

    def test_name_the_user_of_the_image_and_of_the_manifests(self) -> None:
        assert f"USER {USER}" in dockerfile()
        for manifest in ("gateway", "worker", "migrate"):
            assert f"runAsUser: {USER}" in (ROOT / "deploy" / "kubernetes" / f"{manifest}.yaml").read_text()

    def test_have_every_cache_in_a_place_that_can_be_written(self) -> None:
        told = image_environment()
        assert {name: told[name].split("/")[1] for name in ("NUMBA_CACHE_DIR", "MPLCONFIGDIR")} == {
            "NUMBA_CACHE_DIR": "tmp",
            "MPLCONFIGDIR": "tmp",
        }


@pytest.mark.slow
class TestCommands:
    def test_bring_a_job_to_its_result(self, image: Image, fresh_postgres_url: str, redis_url: str) -> None:
        settings = {"SFUMATO_DATABASE_URL": fresh_postgres_url, "SFUMATO_REDIS_URL": redis_url}
        sfumato = ("-m", "service.cli")
        assert "newest schema" in image.run(*sfumato, "migrate", **settings)
        key = image.run(*sfumato, "keys", "create", "first", "--scope", "admin", **settings).strip()
        with image.running(*sfumato, "gateway", **settings):
            url = image.url()
            until(lambda: httpx.get(f"{url}/readyz", verify=NO_TLS).status_code == 200)
            image.run("-c", self.health_check(), SFUMATO_PORT=url.rsplit(":", 1)[1])
            with image.running(*sfumato, "worker", **settings) as worker, Client(url, key) as client:
                features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
                dataset = client.create_dataset("d", features, epsilon=4)
                algorithm = UniformGrid(epsilon=4, clusters=2, cells=4)
                job = client.submit_job(dataset.id, algorithm, target_reports=2000, allow_insufficient=True)
                round_id = until(lambda: client.get_job(job.id).progress.open_round_id)
                places = np.repeat([[0.1, 0.1], [0.9, 0.9]], 1000, axis=0)
                client.send_reports(round_id, *perturb_records(client.get_round(round_id).spec, places))
                assert client.wait_for_job(job.id, timeout_seconds=600).state == "succeeded", image.log
                assert client.result(job.id).model.n_clusters == 2
                assert client.plot_svg(job.id).startswith("<?xml")
                if IS_CONFINED:  # compiled kernels are kept, so that the next child does not compile them again
                    cache = Path("/proc", str(worker.pid), "root", "tmp", "numba")
                    assert list(cache.rglob("*.nbi")), image.log
        assert "Traceback" not in image.log
        assert image.begin("-c", self.health_check(), SFUMATO_PORT="1").wait(600) != 0  # no server listens

    def health_check(self) -> str:
        """Return the health check of the last stage of the Dockerfile, the gateway's."""
        checks = re.findall(r'HEALTHCHECK .*CMD \["python", "-c", (".*")\]', "\n".join(dockerfile()))
        return str(checks[-1])[1:-1].replace('\\"', '"')

    def test_serve_everything_from_the_data_directory(self, image: Image) -> None:
        with image.running("-m", "service.cli", "serve"):
            url = image.url()
            until(lambda: httpx.get(f"{url}/readyz", verify=NO_TLS).status_code == 200)
            assert f"admin key    in {image.data}/admin.key" in image.out.read_text()
            assert "sfk_" not in image.out.read_text()
