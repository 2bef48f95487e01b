"""The documents contain all that a user needs, and agree with the code."""

import itertools
import json
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from html import escape
from pathlib import Path

import pytest

from models.database.types import Base
from models.tables.identity import Scope
from runtime.settings import Settings
from service.http import problems
from sfumato import Auto, InvalidSpec, Outcome
from sfumato.forecast import choose, choose_central
from sfumato.specs import ALGORITHMS, CENTRAL_ALGORITHMS, MECHANISMS
from tests.blocks import PAGES
from tools.site import references, staging
from tools.site.__main__ import render_api_reference

ROOT = Path(__file__).parent.parent


# Code that reads environment variables. Tests of single settings invent names.
RUN_FROM = (
    *(
        "models",
        "service",
        "shuffler",
        "workers",
        "demo",
        "audit",
        "clustering",
        "benchmarks",
        "sdk",
        "tools",
        "migrations",
    ),
    *("compose.yaml", "Dockerfile", "deploy", "Makefile", "tests/conftest.py", "tests/servers.py", "tests/browser"),
)
OF_CLIENTS = {"URL", "KEY"}  # the command line reads them as a client
INTERNAL = {"SFUMATO_DIE_WITH_PARENT"}  # from `sfumato serve` to its own worker


def read(name: str) -> str:
    return (ROOT / name).read_text()


class TestEverythingIsDocumented:
    @pytest.mark.parametrize("field", sorted(Settings.model_fields))
    def test_every_setting_is_in_operations(self, field: str) -> None:
        assert f"`SFUMATO_{field.upper()}`" in read("docs/operations.md")

    def test_every_documented_setting_exists(self) -> None:
        named = set(re.findall(r"`SFUMATO_([A-Z_]+)`", read("docs/operations.md")))
        assert named == {field.upper() for field in Settings.model_fields} | OF_CLIENTS

    def test_every_problem_code_is_in_errors_with_its_status(self) -> None:
        table = dict(
            re.findall(r"^\| \[`([a-z_]+)`\]\(#\1\) \| (\d{3}) \|", read("docs/errors.md"), flags=re.MULTILINE)
        )
        assert table == {code: str(status) for code, status in problem_statuses().items()}

    @pytest.mark.parametrize("tag", sorted(ALGORITHMS))
    def test_every_algorithm_and_parameter_is_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/algorithms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for parameter in fields(ALGORITHMS[tag]):
            assert f"| `{parameter.name}` |" in section

    @pytest.mark.parametrize("tag", sorted(MECHANISMS))
    def test_every_mechanism_and_its_fields_are_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/mechanisms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for field in fields(MECHANISMS[tag]):
            assert field.name == "n_symbols" or f"`{field.name}`" in section

    def test_every_command_is_documented_with_its_options(self) -> None:
        """Check all commands in one test, because the help of each costs a process."""
        documented = references.list_commands()
        table = read("docs/operations.md").split("## Commands")[1].split("\n## ")[0]
        assert set(re.findall(r"`sfumato ([a-z -]+)`", table)) == set(documented)
        assert {"serve", "gateway", "worker", "migrate", "keys create", "audit-trail verify"} <= set(documented)
        page, options = references.commands_page(), {}
        for name, text in documented.items():
            assert text, name
            assert f"## sfumato {name} {{ #" in page
            parsed = references.parse_options(text)
            assert [option for option, meaning in parsed if not meaning.split("[")[0].strip()] == []
            options[name] = {syntax.split()[0] for syntax, _ in parsed}
        assert {"--host", "--port", "--home"} <= options["serve"]
        assert {"--quick", "--planted", "--seed"} <= options["audit"]
        assert {"--reports", "--bounds", "--production"} <= options["demo"]
        assert {"name", "--scope", "--expires-days"} <= options["keys create"]

    def test_every_variable_that_is_read_is_documented(self) -> None:
        text = "".join(read(page) for page in PAGES)
        unknown = {name for name in variables() if f"`{name}`" not in text} - INTERNAL
        assert unknown == set()

    @pytest.mark.parametrize("page", PAGES)
    def test_every_link_leads_somewhere(self, page: str) -> None:
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", read(page)) if "://" not in link]
        missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
        assert missing == []

    @pytest.mark.parametrize("page", PAGES)
    def test_every_anchor_is_a_heading(self, page: str) -> None:
        anchors = re.findall(r"\]\(([^)#]*)#([^)]+)\)", read(page))
        linked = [(ROOT / page).parent / path if path else ROOT / page for path, _ in anchors if "://" not in path]
        names = [name for path, name in anchors if "://" not in path]
        assert [name for path, name in zip(linked, names, strict=True) if name not in headings(path)] == []

    def test_every_operation_and_schema_is_in_the_reference(self) -> None:
        document = json.loads(read("openapi/openapi.json"))
        sections = {part.partition("'")[0]: part for part in render_api_reference().split("<h3 id='")[1:]}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                section = sections[operation["operationId"]]
                assert f"<code>{method.upper()} {escape(path)}</code>" in section
                assert escape(operation["summary"]) in section
                names = [parameter["name"] for parameter in operation.get("parameters", ())]
                assert [name for name in names if f"<code>{name}</code>" not in section] == []
                assert [status for status in operation["responses"] if f"<td>{status}</td>" not in section] == []
        for name, schema in document["components"]["schemas"].items():
            section = sections[f"schema-{name}"]
            assert [member for member in schema.get("properties", ()) if f"<code>{member}</code>" not in section] == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub form them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {staging.make_anchor(title) for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


def defaults() -> dict[str, str]:
    """Return the row of each setting in docs/operations.md."""
    rows = re.findall(r"^\| `SFUMATO_([A-Z_]+)` \| ([^|]+) \|", read("docs/operations.md"), flags=re.MULTILINE)
    return {name: said.strip("` ") for name, said in rows if name.lower() in Settings.model_fields}


class TestSettings:
    @pytest.mark.parametrize("name", sorted(defaults()))
    def test_has_the_default_of_the_code(self, name: str) -> None:
        default = Settings.model_fields[name.lower()].default
        said = defaults()[name]
        if default in (None, ""):
            assert not re.match(r"[\d.]+$", said)
        else:
            assert said == references.format_value(default)

    def test_are_in_the_reference_with_their_ranges(self) -> None:
        page = references.settings_page()
        for name, field in Settings.model_fields.items():
            assert f"| `SFUMATO_{name.upper()}` |" in page
            assert field.description in page
        assert "| `SFUMATO_LEASE_SECONDS` | number, > 0.2, ≤ 3600 | `20` |" in page
        assert "| `SFUMATO_REDIS_URL` | text | none |" in page


class TestDataModel:
    def test_has_each_column_with_a_known_type(self) -> None:
        page = references.data_model_page()
        for table in Base.metadata.tables.values():
            assert f"### `{table.name}`" in page
            for column in table.columns:
                assert f"| `{column.name}` | " in page
        assert "NullType" not in page
        assert "```text\n    queued ──claim──► running" in page


class TestQuickStarts:
    def test_have_a_picture_each(self) -> None:
        for page in sorted((ROOT / "docs" / "tutorials").iterdir()):
            pictures = re.findall(r"^!\[[^\]]+\]\((.+)\)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert pictures, page.name
            assert all((page.parent / picture).is_file() for picture in pictures)

    def test_lists_every_outcome_for_apps(self) -> None:
        table = read("docs/tutorials/app.md").split("| outcome |")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)) == {each.value for each in Outcome}

    def test_lists_every_scope_for_officers(self) -> None:
        table = read("docs/tutorials/ledger.md").split("| scope |")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)) == {each.value for each in Scope}


class TestChoosing:
    """Compare docs/choosing.md with the rule on both sides of every border."""

    FEATURES = (1, 2, 3, 4, 5, 6, 17, 64)
    CLUSTERS = (None, 1, 2, 64, 65, 256)
    SHAPES = (None, "any", "round")
    EPSILONS = (0.1, 0.5, 1, 2, 8)
    REPORTS = (1, 500, 999, 1000, 1001, 4682, 4683, 10_000, 400_000, 10_000_000)

    @pytest.mark.slow
    def test_the_table_for_reports_equals_the_rule(self) -> None:
        rows = [row for row in chooser_rows() if row["data"] == "device reports"]
        seen = set()
        for n, k, epsilon, shape, reports in itertools.product(
            self.FEATURES, self.CLUSTERS, self.EPSILONS, self.SHAPES, self.REPORTS
        ):
            (row,) = [each for each in rows if row_holds(each, Auto(epsilon, k, shape), n, reports)]
            seen.add(tuple(row.values()))
            try:
                taken = choose(Auto(epsilon, k, shape), n, reports).algorithm.type
            except InvalidSpec:
                taken = "none"
            assert taken == row["algorithm"], (n, k, epsilon, shape, reports)
        assert len(seen) == len(rows)

    def test_the_table_for_records_equals_the_rule(self) -> None:
        rows = [row for row in chooser_rows() if row["data"] == "records"]
        for n, k, shape in itertools.product(self.FEATURES, self.CLUSTERS, self.SHAPES):
            (row,) = [each for each in rows if row_holds(each, Auto(1.0, k, shape), n, 0)]
            try:
                taken = choose_central(Auto(1.0, k, shape), n).algorithm.type
            except InvalidSpec:
                taken = "none"
            assert taken == row["algorithm"], (n, k, shape)

    def test_every_algorithm_has_a_reason(self) -> None:
        table = read("docs/choosing.md").split("| algorithm | use it for |")[1]
        told = re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", table, flags=re.MULTILINE)
        assert sorted(name for name, _ in told) == sorted({*ALGORITHMS, *CENTRAL_ALGORITHMS})
        assert {name for name, when in told if when.startswith("records")} == set(CENTRAL_ALGORITHMS) - {"auto"}


def chooser_rows() -> Iterator[dict[str, str]]:
    table = read("docs/choosing.md").split("## Selection rules of `auto`")[1].split("\n## ")[0]
    for line in re.findall(r"^\| (?:device reports|records) .+ \|$", table, flags=re.MULTILINE):
        data, features, clusters, condition, algorithm = (cell.strip() for cell in line.strip("|").split("|"))
        selected = re.search(r"`([a-z_]+)`|none", algorithm)
        assert selected is not None
        row = {"data": data, "features": features, "clusters": clusters, "condition": condition}
        yield row | {"algorithm": selected[1] or "none"}


def row_holds(row: dict[str, str], params: Auto, n_features: int, reports: int) -> bool:
    """Return whether a row applies."""
    information = reports * math.tanh(params.epsilon / 2) ** 2
    holds = {"": True, "N·tanh²(ε/2) < 1000": information < 1000, "N·tanh²(ε/2) ≥ 1000": information >= 1000}
    for shape in ("any", "round"):
        holds |= {f"`shape` is `{shape}`": params.shape == shape, f"`shape` not `{shape}`": params.shape != shape}
    k_fits = row["clusters"] == "any" or (
        row["clusters"] == "not given" if params.clusters is None else spans(row["clusters"], params.clusters)
    )
    return spans(row["features"], n_features) and k_fits and holds[row["condition"]]


def spans(text: str, number: int) -> bool:
    """Return whether `4` or `1 to 3` contains a number."""
    found = [int(each) for each in re.findall(r"\d+", text)]
    return bool(found) and found[0] <= number <= found[-1]


def problem_statuses() -> dict[str, int]:
    return {kind.code: kind.status for kind in problems.ALL_PROBLEMS}


def variables() -> set[str]:
    """Return every `SFUMATO_...` in code that runs."""
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-ohE", r"\bSFUMATO_[A-Z_]+[A-Z]\b", "--", *RUN_FROM],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = set(listed.split())
    assert len(found) > 10
    return found
