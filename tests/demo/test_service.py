"""Tests of the demo's private service: inherited settings do not reach it, and it ends with the demo."""

import os
from pathlib import Path

import httpx
import pytest

from demo.scenario import ServiceFailed
from demo.service import LocalService
from devservers import fleet
from devservers.servers import ProcessFailed


@pytest.fixture
def fake_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a module that replaces `service.cli`. A test writes its program there."""
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "service" / "cli.py"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class TestStart:
    def test_a_failed_start_shows_the_last_lines_of_the_log(self, fake_cli: Path) -> None:
        fake_cli.write_text(
            "import sys\nfor n in range(40): print('line', n, 'sfk_secret')\nsys.exit('no disk left')\n"
        )
        with pytest.raises(ProcessFailed) as caught, LocalService():
            pass
        message = str(caught.value)
        assert "ended with status 1" in message
        assert message.endswith("no disk left")
        assert "line 39" in message
        assert "line 20" not in message
        assert "sfk_secret" not in message

    def test_a_start_that_takes_too_long_is_aborted(self, fake_cli: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fleet, "START_SECONDS", 8.0)  # enough for Python to start on a busy machine
        fake_cli.write_text("import time\nprint('thinking', flush=True)\ntime.sleep(600)\n")
        service = LocalService()
        with pytest.raises(ProcessFailed, match=r"does not listen within 8 s[\s\S]*thinking"):
            service.__enter__()
        assert not is_alive(service.member.process.pid)

    def test_a_start_without_a_key_fails(self, fake_cli: Path) -> None:
        fake_cli.write_text(_READY)
        service = LocalService()
        with pytest.raises(ServiceFailed, match="no admin key"):
            service.__enter__()
        assert not is_alive(service.member.process.pid)


class TestEnd:
    def test_no_process_and_no_files_remain(self, fake_cli: Path) -> None:
        fake_cli.write_text(_KEY + _READY)
        with LocalService() as service:
            assert is_alive(service.member.process.pid)
            assert service.key == "sfk_test"
            (home,) = {Path(line) for line in _log(service).splitlines() if line.startswith("/")}
            assert home.is_dir()
        assert not is_alive(service.member.process.pid)
        assert not home.exists()

    def test_a_service_that_ignores_sigterm_is_killed_after_an_error(
        self, fake_cli: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet, "STOP_SECONDS", 0.5)
        fake_cli.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _KEY + _READY)
        with pytest.raises(KeyboardInterrupt), LocalService() as service:
            raise KeyboardInterrupt
        assert not is_alive(service.member.process.pid)

    def test_check_detects_that_the_service_ended(self, fake_cli: Path) -> None:
        fake_cli.write_text(_KEY + _READY.replace("serve_forever()", "handle_request()"))
        with LocalService() as service:
            service.member.process.wait(60)
            with pytest.raises(ProcessFailed, match="ended with status 0"):
                service.check()


class TestEnvironment:
    def test_settings_of_the_caller_are_not_inherited(self, fake_cli: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql://production")
        monkeypatch.setenv("sfumato_redis_url", "redis://production")
        monkeypatch.setenv("LANG", "C.UTF-8")
        fake_cli.write_text("import os\nprint(sorted(os.environ), flush=True)\n" + _KEY + _READY)
        with LocalService() as service:
            log = _log(service)
        assert "LANG" in log
        assert "SFUMATO_HOME" in log
        assert "DATABASE_URL" not in log
        assert "redis_url" not in log

    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "SSL_CERT_FILE"])
    def test_the_service_is_reached_without_a_proxy(
        self, fake_cli: Path, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setattr(fleet, "START_SECONDS", 60.0)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(variable, "/nowhere" if variable == "SSL_CERT_FILE" else "socks5://127.0.0.1:9")
        fake_cli.write_text(_KEY + _READY)
        with LocalService() as service, httpx.Client(transport=service.open_transport()) as client:
            assert client.get(f"{service.url}/readyz").status_code == httpx.codes.OK


def _log(service: LocalService) -> str:
    return service.member.log.read_text()


_KEY = """
import os, pathlib
home = pathlib.Path(os.environ["SFUMATO_HOME"])
print(home, flush=True)
(home / "admin.key").write_text("sfk_test\\n")
"""

_READY = """
import http.server, os, pathlib
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Ready)
print(f"Sfumato listens on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
