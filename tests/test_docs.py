"""The documents are true: everything a user meets is in them, and what they say of it is what the code says."""

import itertools
import json
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from models.settings import Settings
from models.tenant import Scope
from service import problems
from sfumato import Auto, InvalidSpec, Outcome
from sfumato.forecast import choose, choose_central
from sfumato.specs import ALGORITHMS, CENTRAL_ALGORITHMS, MECHANISMS
from tests.blocks import PAGES
from tools.site import api, commands, settings

ROOT = Path(__file__).parent.parent


# Where variables of the environment are read: not the tests of single settings, which make names up.
RUN_FROM = (
    *("models", "service", "workers", "demo", "audit", "clustering", "benchmarks", "sdk", "tools", "migrations"),
    *("compose.yaml", "Dockerfile", "deploy", "Makefile", "tests/conftest.py", "tests/servers.py", "tests/browser"),
)
OF_CLIENTS = {"URL", "KEY"}  # read by the command line as a client, and by no gateway or worker
INTERNAL = {"SFUMATO_DIE_WITH_PARENT"}  # what `sfumato serve` tells its own worker


def read(name: str) -> str:
    return (ROOT / name).read_text()


class TestEverythingIsDocumented:
    @pytest.mark.parametrize("field", sorted(Settings.model_fields))
    def test_every_setting_stands_in_operations(self, field: str) -> None:
        assert f"`SFUMATO_{field.upper()}`" in read("docs/operations.md")

    def test_no_setting_is_documented_that_is_not_there(self) -> None:
        named = set(re.findall(r"`SFUMATO_([A-Z_]+)`", read("docs/operations.md")))
        assert named == {field.upper() for field in Settings.model_fields} | OF_CLIENTS

    def test_every_problem_code_stands_in_errors_with_its_status(self) -> None:
        table = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", read("docs/errors.md"), flags=re.MULTILINE))
        assert table == {code: str(status) for code, status in problem_statuses().items()}

    @pytest.mark.parametrize("tag", sorted(ALGORITHMS))
    def test_every_algorithm_and_parameter_is_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/algorithms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for parameter in fields(ALGORITHMS[tag]):
            assert f"| `{parameter.name}` |" in section

    @pytest.mark.parametrize("tag", sorted(MECHANISMS))
    def test_every_mechanism_and_what_it_publishes_is_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/mechanisms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for field in fields(MECHANISMS[tag]):
            assert field.name == "n_symbols" or f"`{field.name}`" in section

    def test_every_command_stands_in_operations_and_no_other(self) -> None:
        table = read("docs/operations.md").split("## Commands")[1].split("\n## ")[0]
        assert set(re.findall(r"`sfumato ([a-z -]+)`", table)) == set(commands.commands())

    def test_every_command_argument_and_option_says_what_it_does(self) -> None:
        for name, text in commands.commands().items():
            assert text, name
            assert [written for written, told in commands.takes(text) if not told.split("[")[0].strip()] == []

    def test_every_variable_that_is_read_is_documented(self) -> None:
        text = "".join(read(page) for page in PAGES)
        unknown = {name for name in variables() if f"`{name}`" not in text} - INTERNAL
        assert unknown == set()

    @pytest.mark.parametrize("page", PAGES)
    def test_every_link_leads_somewhere(self, page: str) -> None:
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", read(page)) if "://" not in link]
        missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
        assert missing == []

    def test_every_operation_and_schema_stands_in_the_reference(self) -> None:
        document = json.loads(read("openapi/openapi.json"))
        pages = api.pages(document)
        for method, path, operation in api.operations(document):
            page = pages[f"{operation['tags'][0]}.md"]
            (section,) = [each for each in re.split(r"^## ", page, flags=re.MULTILINE) if f"`{method} {path}`" in each]
            assert operation["summary"] in section
            assert [p["name"] for p in operation.get("parameters", ()) if f"`{p['name']}`" not in section] == []
            assert [status for status in operation["responses"] if status not in section] == []
        for name, schema in document["components"]["schemas"].items():
            (section,) = [each for each in pages["schemas.md"].split("\n## ") if each.startswith(f"{name} {{")]
            assert [member for member in schema.get("properties", ()) if f"`{member}`" not in section] == []


def defaults() -> dict[str, str]:
    """What operations says of each setting that has a row of its own."""
    rows = re.findall(r"^\| `SFUMATO_([A-Z_]+)` \| ([^|]+) \|", read("docs/operations.md"), flags=re.MULTILINE)
    return {name: said.strip("` ") for name, said in rows if name.lower() in Settings.model_fields}


class TestWhatIsSaidOfSettings:
    @pytest.mark.parametrize("name", sorted(defaults()))
    def test_the_default_is_the_code_s(self, name: str) -> None:
        default = Settings.model_fields[name.lower()].default
        said = defaults()[name]
        if default in (None, ""):
            assert not re.match(r"[\d.]+$", said)
        else:
            assert said == settings.written(default)

    def test_the_reference_has_each_with_its_range(self) -> None:
        page = settings.page()
        for name, field in Settings.model_fields.items():
            assert f"| `SFUMATO_{name.upper()}` |" in page
            assert field.description in page
        assert "| `SFUMATO_LEASE_SECONDS` | number, > 0.2, ≤ 3600 | `20` |" in page
        assert "| `SFUMATO_REDIS_URL` | text | none |" in page


class TestQuickStarts:
    def test_an_app_is_told_every_outcome(self) -> None:
        table = read("docs/quickstart-app.md").split("| outcome |")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)) == {each.value for each in Outcome}

    def test_an_officer_is_told_every_scope(self) -> None:
        table = read("docs/quickstart-officer.md").split("| scope |")[1].split("\n\n")[0]
        assert set(re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)) == {each.value for each in Scope}


class TestChoosing:
    """docs/choosing.md against the rule itself, over facts on both sides of every border."""

    FEATURES = (1, 2, 3, 4, 5, 6, 17, 64)
    CLUSTERS = (None, 1, 2, 64, 65, 256)
    EPSILONS = (0.1, 0.5, 1, 2, 8)
    REPORTS = (1, 500, 999, 1000, 1001, 4682, 4683, 10_000, 400_000, 10_000_000)

    def test_the_table_is_the_rule_over_reports(self) -> None:
        rows = [row for row in chooser_rows() if row["over"] == "devices' reports"]
        seen = set()
        for n, k, epsilon, reports in itertools.product(self.FEATURES, self.CLUSTERS, self.EPSILONS, self.REPORTS):
            (row,) = [each for each in rows if row_holds(each, n, k, epsilon, reports)]
            seen.add(tuple(row.values()))
            try:
                taken = choose(Auto(epsilon, k), n, reports).algorithm.type
            except InvalidSpec:
                taken = "nothing"
            assert taken == row["takes"], (n, k, epsilon, reports)
        assert len(seen) == len(rows)

    def test_the_table_is_the_rule_over_records(self) -> None:
        rows = [row for row in chooser_rows() if row["over"] == "records"]
        for n, k, epsilon in itertools.product(self.FEATURES, self.CLUSTERS, self.EPSILONS):
            (row,) = [each for each in rows if row_holds(each, n, k, epsilon, 0)]
            try:
                taken = choose_central(Auto(epsilon, k), n).algorithm.type
            except InvalidSpec:
                taken = "nothing"
            assert taken == row["takes"], (n, k, epsilon)

    def test_every_algorithm_has_a_reason_to_be_taken(self) -> None:
        table = read("docs/choosing.md").split("| take | when |")[1]
        told = re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", table, flags=re.MULTILINE)
        assert sorted(name for name, _ in told) == sorted({*ALGORITHMS, *CENTRAL_ALGORITHMS})
        assert {name for name, when in told if when.startswith("records")} == set(CENTRAL_ALGORITHMS) - {"auto"}


def chooser_rows() -> Iterator[dict[str, str]]:
    table = read("docs/choosing.md").split("## What `auto` takes")[1].split("\n## ")[0]
    for line in re.findall(r"^\| (?:devices|records).+ \|$", table, flags=re.MULTILINE):
        over, features, clusters, reports, takes = (cell.strip() for cell in line.strip("|").split("|"))
        taken = re.search(r"`([a-z_]+)`|nothing", takes)
        assert taken is not None
        row = {"over": over, "features": features, "clusters": clusters, "reports": reports}
        yield row | {"takes": taken[1] or "nothing"}


def row_holds(row: dict[str, str], n_features: int, clusters: int | None, epsilon: float, reports: int) -> bool:
    """Whether facts are those of a row, read as a person reads it."""
    information = reports * math.tanh(epsilon / 2) ** 2
    enough = {"any": True, "N·tanh²(ε/2) below 1000": information < 1000, "N·tanh²(ε/2) from 1000": information >= 1000}
    k_fits = row["clusters"] == "any" or (
        row["clusters"] == "counted" if clusters is None else spans(row["clusters"], clusters)
    )
    return spans(row["features"], n_features) and k_fits and enough[row["reports"]]


def spans(said: str, number: int) -> bool:
    """`4`, or `1 to 3`; words span nothing."""
    found = [int(each) for each in re.findall(r"\d+", said)]
    return bool(found) and found[0] <= number <= found[-1]


def problem_statuses() -> dict[str, int]:
    return {kind.code: kind.status for kind in problems.ALL_PROBLEMS}


def variables() -> set[str]:
    """Every `SFUMATO_...` that stands in something that is run."""
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
