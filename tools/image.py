"""Build the image from the Dockerfile without a container engine or a registry, and run commands in it.

    make image

Needs root on Debian, with the packages buildah and debootstrap. The base image is made from Debian's packages by
debootstrap, because CI reaches no image registry. It has the same Debian release and Python version as the default of
the Dockerfile. The wheels are downloaded once, with the pip of this interpreter, and mounted into the build.

buildah stores each layer as a full copy (vfs) and runs the steps of the Dockerfile in a plain chroot. This needs
neither overlay mounts nor user namespaces, which not every CI machine has. All files lie on one tmpfs, which is much
faster for many small files, or in a folder if the machine has too little memory. Both disappear at the end.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITE, PYTHON = "trixie", "3.13"  # release and Python of the default base image
BASE_PACKAGES = "ca-certificates,python3,python3-pip"  # the Dockerfile expects python3 with venv, and pip
BASE, IMAGE = "localhost/sfumato-base", "localhost/sfumato"
MANYLINUX = (
    "manylinux2014",
    "manylinux_2_17",
    "manylinux_2_27",
    "manylinux_2_28",
)  # tags of the wheels that the base can run
TMPFS_GIB = 8
MAX_LAYER_MB = 700  # largest uncompressed size of the layers above the base

# Enter the image as an engine would start it: own namespaces, a read-only root, a few devices, an empty data volume.
# The interface of the loopback is down in a new network namespace; bit 1 of its flags is IFF_UP.
ENTER = """
set -e
python3=$1 root=$2 user=$3 home=$4
shift 4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
mkdir "$root/dev/shm"
for device in null zero full random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o "mode=0700,uid=$user,gid=$user" tmpfs "$root$home"
mount -o remount,bind,ro "$root"
"$python3" -c '
import fcntl, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 1))
'
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all sh -c 'cd "$0" && exec "$@"' "$home" "$@"
"""


class ImageError(Exception):
    """The image cannot be built here. The message contains the reason."""


@dataclass(frozen=True)
class Image:
    """A built image, unpacked to a folder."""

    root: Path
    config: dict[str, Any]  # the `config` of Docker's image format
    layer_bytes: int  # uncompressed size of the layers above the base image

    @property
    def user(self) -> str:
        """Return the user id of the processes."""
        return str(self.config["User"])

    @property
    def _environment(self) -> list[str]:
        return [*self.config["Env"], f"HOME={self.config['WorkingDir']}"]

    def start(self, *arguments: str, entrypoint: list[str] | None = None, **popen: Any) -> "subprocess.Popen[str]":
        """Start a command in new namespaces: the image's entry point, or another one.

        The command is process 1 of its namespace. The returned process is its parent outside; see `first_process`.
        """
        inside = [*(self.config["Entrypoint"] if entrypoint is None else entrypoint), *arguments]
        settings = [sys.executable, str(self.root), self.user, self.config["WorkingDir"]]
        spaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"]
        return subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", ENTER, "-", *settings, "env", "-i", *self._environment, *inside],
            text=True,
            stdin=subprocess.DEVNULL,
            **popen,
        )

    def run(self, *arguments: str, entrypoint: list[str] | None = None, seconds: float = 300) -> str:
        """Run a command to its end and return its standard output. Raise CalledProcessError if it fails."""
        with self.start(*arguments, entrypoint=entrypoint, stdout=subprocess.PIPE) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            finally:
                process.kill()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, arguments, output)
        return output

    def is_healthy(self, process: "subprocess.Popen[str]") -> bool:
        """Run the image's health check beside a started command. Return whether it passes."""
        kind, *check = self.config["Healthcheck"]["Test"]
        if kind != "CMD":
            raise ImageError(f"health check of kind {kind}")
        target = first_process(process)
        if target is None:
            return False
        enter = ["nsenter", "--target", str(target), "--mount", "--net", "--pid", "--root", "--wd"]
        drop = ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups", "--no-new-privs"]
        command = [*enter, *drop, "env", "-i", *self._environment, *check]
        seconds = self.config["Healthcheck"]["Timeout"] / 1e9
        try:
            return subprocess.run(command, capture_output=True, timeout=seconds, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def first_process(process: "subprocess.Popen[str]") -> int | None:
    """Return the id, outside, of process 1 of a started command's namespace, or None if it does not run."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except FileNotFoundError:
        return None
    return int(children[0]) if children else None


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Raise ImageError with its last messages if it fails."""
    result = subprocess.run([str(each) for each in command], text=True, capture_output=True, check=False, env=env)
    if result.returncode != 0:
        lines = (result.stdout + result.stderr).strip().splitlines()[-30:]
        raise ImageError("\n".join([f"failed: {shlex.join(str(each) for each in command)}", *lines]))
    return result.stdout


def require_tools() -> None:
    """Raise ImageError if the image cannot be built on this machine."""
    missing = [tool for tool in ("buildah", "debootstrap", "unshare", "setpriv", "nsenter") if not shutil.which(tool)]
    if missing:
        raise ImageError(f"not installed: {', '.join(missing)}. Debian: apt-get install buildah debootstrap")
    if os.geteuid() != 0:
        raise ImageError("building the image here needs root, for chroot and mount")


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for all files of a build: a tmpfs if memory suffices, else on disk. Remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sfumato-image-"))
    available = int(
        next(line for line in Path("/proc/meminfo").read_text().splitlines() if "Available" in line).split()[1]
    )
    is_tmpfs = available > 1.5 * TMPFS_GIB * 2**20  # kB
    if is_tmpfs:
        run("mount", "-t", "tmpfs", "-o", f"size={TMPFS_GIB}g,mode=0700", "tmpfs", folder)
    try:
        yield folder
    finally:
        if is_tmpfs:
            run("umount", "--lazy", folder)
        shutil.rmtree(folder, ignore_errors=True)


class Builder:
    """Steps of a build in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheels = folder / "wheels"

    def buildah(self, *arguments: str | Path) -> str:
        """Run buildah with a storage of its own, and temporary files beside it."""
        places: list[str | Path] = [
            "--root",
            self._folder / "storage",
            "--runroot",
            self._folder / "run",
            "--storage-driver",
            "vfs",
        ]
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return run("buildah", *places, *arguments, env=os.environ | {"TMPDIR": str(temporary)}).strip()

    def make_base(self) -> None:
        """Make the base image from Debian's packages."""
        base = self._folder / "base"
        try:
            run("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, base)
        except ImageError as error:
            log = base / "debootstrap" / "debootstrap.log"
            details = log.read_text().splitlines()[-10:] if log.exists() else []
            message = "debootstrap could not make the base image. Does apt's mirror answer?"
            raise ImageError("\n".join([message, str(error), *details])) from None
        for cache in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(base / cache)
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, base, "/")
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.buildah("config", "--env", f"PATH={path}", "--cmd", "python3", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(base)

    def download_wheels(self) -> None:
        """Download the wheels that the Dockerfile installs, for the base's Python, and check their hashes.

        pip evaluates the lock's markers for this interpreter. Another wheel than those that the image needs is unused.
        A missing one ends the build.
        """
        tags = [f"{tag}_{platform.machine()}" for tag in MANYLINUX]
        target = ["--python-version", PYTHON, *(each for tag in tags for each in ("--platform", tag))]
        lock = self._folder / "wheels.lock"
        selected = [run(sys.executable, ROOT / "tools/lock.py", *each) for each in
                    (("--extra", "demo"), ("--package", "setuptools"))]  # fmt: skip
        lock.write_text("".join(selected))
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(*pip, "download", "--require-hashes", "--only-binary", ":all:", "--no-deps", *target,
            "--requirement", lock, "--dest", self._wheels)  # fmt: skip

    def build(self) -> Image:
        """Build the image from the Dockerfile, and unpack it."""
        offline = ["--build-arg", "PIP_FIND_LINKS=/mnt", "--build-arg", "PIP_NO_INDEX=1"]
        self.buildah(
            "build", "--isolation", "chroot", "--format", "docker", "--pull-never", "--build-arg", f"BASE_IMAGE={BASE}",
            *offline, "--volume", f"{self._wheels}:/mnt:ro", "--tag", IMAGE, ROOT,
        )  # fmt: skip
        inspected = json.loads(self.buildah("inspect", "--type", "image", IMAGE))
        layers = json.loads((self._folder / "storage/vfs-layers/layers.json").read_text())
        size = sum(layer["diff-size"] for layer in layers if "parent" in layer)
        root = self.buildah("mount", self.buildah("from", "--pull-never", IMAGE))
        return Image(root=Path(root), config=inspected["Docker"]["config"], layer_bytes=size)


@contextmanager
def built_image() -> Iterator[Image]:
    """Build the image and yield it. Remove everything at the end."""
    require_tools()
    with scratch() as folder:
        builder = Builder(folder)
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            for step in [pool.submit(builder.make_base), pool.submit(builder.download_wheels)]:
                step.result()
        ready = time.monotonic()
        image = builder.build()
        print(  # noqa: T201 - the figures that CI reports
            f"base and wheels: {ready - began:.0f} s; image: {time.monotonic() - ready:.0f} s, "
            f"{image.layer_bytes / 1e6:.0f} MB above the base",
            flush=True,
        )
        yield image
