"""The demo's own service: nobody's settings reach it, and it never outlives the demo."""

import os
from pathlib import Path

import pytest

from demo import own_service
from demo.errors import ServiceFailed
from demo.own_service import OwnService


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `service.cli` of the test's own in place of the real one; write its program here."""
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
    def test_that_fails_shows_the_last_lines(self, pretended: Path) -> None:
        pretended.write_text(
            "import sys\nfor n in range(40): print('line', n, 'sfk_secret')\nsys.exit('no disk left')\n"
        )
        with pytest.raises(ServiceFailed) as caught, OwnService():
            pass
        said = str(caught.value)
        assert "ended with status 1" in said
        assert said.endswith("no disk left")
        assert "line 39" in said
        assert "line 20" not in said
        assert "sfk_secret" not in said

    def test_that_never_comes_is_given_up_and_the_process_ended(
        self, pretended: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(own_service, "START_SECONDS", 8.0)  # for Python to begin in, on a busy machine too
        pretended.write_text("import time\nprint('thinking', flush=True)\ntime.sleep(600)\n")
        service = OwnService()
        with pytest.raises(ServiceFailed, match=r"not ready within 8 s[\s\S]*thinking"):
            service.__enter__()
        assert not is_alive(service.pid)

    def test_without_a_key_is_no_start(self, pretended: Path) -> None:
        pretended.write_text(_READY)
        service = OwnService()
        with pytest.raises(ServiceFailed, match="no admin key"):
            service.__enter__()
        assert not is_alive(service.pid)


class TestEnd:
    def test_leaves_neither_process_nor_files(self, pretended: Path) -> None:
        pretended.write_text(_KEY + _READY)
        with OwnService() as service:
            assert is_alive(service.pid)
            assert service.key == "sfk_test"
            (home,) = {Path(line) for line in _log(service).splitlines() if line.startswith("/")}
            assert home.is_dir()
        assert not is_alive(service.pid)
        assert not home.exists()

    def test_comes_after_an_error_and_without_the_services_consent(
        self, pretended: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(own_service, "STOP_SECONDS", 0.5)
        pretended.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _KEY + _READY)
        with pytest.raises(KeyboardInterrupt), OwnService() as service:
            raise KeyboardInterrupt
        assert not is_alive(service.pid)

    def test_in_between_is_noticed(self, pretended: Path) -> None:
        pretended.write_text(_KEY + _READY.replace("serve_forever()", "handle_request()"))
        with OwnService() as service:
            service._process.wait(60)
            with pytest.raises(ServiceFailed, match="ended with status 0"):
                service.check()


class TestEnvironment:
    def test_of_the_person_at_the_terminal_does_not_reach_it(
        self, pretended: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "postgresql://production")
        monkeypatch.setenv("sfumato_redis_url", "redis://production")
        monkeypatch.setenv("LANG", "C.UTF-8")
        pretended.write_text("import os\nprint(sorted(os.environ), flush=True)\n" + _KEY + _READY)
        with OwnService() as service:
            seen = _log(service)
        assert "LANG" in seen
        assert "SFUMATO_HOME" in seen
        assert "DATABASE_URL" not in seen
        assert "redis_url" not in seen


def _log(service: OwnService) -> str:
    return service._log.read_text()


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
pathlib.Path(os.environ["SFUMATO_HOME"], "url").write_text(f"http://127.0.0.1:{server.server_port}\\n")
server.serve_forever()
"""
