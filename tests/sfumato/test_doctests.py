"""The examples in the package's docstrings are run as they stand, those that need a service against one."""

import doctest
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import sfumato
from sfumato.client import AsyncClient, Client
from sfumato.specs import Feature, GridEncoding
from tests.service.processes import running

# Whoever reads an example has an address, a key and a dataset; so has it.
GIVEN = ("url", "key", "dataset_id")

# Tried where pandas is, in tests/sdks/test_python.py.
NEEDS_PANDAS = {"sfumato.frames.clusters_frame"}

MODULES = sorted(module.name for module in pkgutil.walk_packages(sfumato.__path__, "sfumato."))

# Names that people begin with: each shows how it is used.
SHOWN = (
    "accounting.cost",
    "accounting.parse_epsilon",
    "bulk.perturb_records",
    "client.AsyncClient",
    "client.Client",
    "cluster_model.ClusterModel.assign",
    "device.Device",
    "device.Device.dry_run",
    "dry_runs.dry_run",
    "forecast.figures.forecast",
    "frames.clusters_columns",
    "frames.clusters_frame",
    "ledger.verify",
    "mechanisms.design",
    "specs.rounds.Draw.between",
    "store.FileStore",
    "_administration.AdministrationCalls.limits",
    "_calls.Calls.create_key",
    "_calls.Calls.forecast",
    "_datasets.DatasetCalls.budget",
    "_datasets.DatasetCalls.create_dataset",
    "_datasets.DatasetCalls.send_reports",
    "_datasets.DatasetCalls.verify_ledger",
    "_jobs.JobCalls.submit_job",
    "_records.RecordCalls.upload_records",
)


def examples_of(name: str) -> list[doctest.DocTest]:
    """What a module's docstrings show."""
    found = doctest.DocTestFinder(exclude_empty=True).find(import_module(name), name)
    return [each for each in found if each.examples and each.name not in NEEDS_PANDAS]


def needs_service(test: doctest.DocTest) -> bool:
    return any(name in example.source for example in test.examples for name in ("(url, key",))


ALL = [test for name in MODULES for test in examples_of(name)]
ALONE = [pytest.param(test, id=test.name) for test in ALL if not needs_service(test)]
WITH_SERVICE = [pytest.param(test, id=test.name) for test in ALL if needs_service(test)]


@dataclass(frozen=True)
class Live:
    """A service that runs."""

    url: str
    key: str

    def given(self) -> dict[str, object]:
        """What an example is given: a dataset of its own, with an open round."""
        with Client(self.url, self.key) as client:
            dataset = client.create_dataset("Lunch", [Feature("east", 0, 10), Feature("north", 0, 10)], epsilon=2)
            client.open_round(dataset.id, GridEncoding((8, 8)), epsilon=1, target_reports=1000)
        return dict(zip(GIVEN, (self.url, self.key, dataset.id), strict=True))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("service") / "home"
    with running(home, "serve", "--port", "0") as service:
        url = service.url()
        yield Live(url, (home / "admin.key").read_text().strip())


def run(test: doctest.DocTest) -> str:
    """What an example says that it should not."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=said.append, clear_globs=False)
    return "".join(said)


class TestExamples:
    @pytest.mark.parametrize("test", ALONE)
    def test_do_as_they_say(self, test: doctest.DocTest) -> None:
        assert run(test) == ""

    @pytest.mark.parametrize("test", WITH_SERVICE)
    def test_do_as_they_say_of_a_service(self, test: doctest.DocTest, live: Live) -> None:
        test.globs.update(live.given())
        assert run(test) == ""

    def test_are_where_people_begin(self) -> None:
        shown = {test.name for test in ALL} | NEEDS_PANDAS
        assert {f"sfumato.{name}" for name in SHOWN} <= shown

    def test_that_are_wrong_are_found_out(self) -> None:
        wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
        assert "Expected:" in run(wrong) or "Differences" in run(wrong)

    def test_of_both_clients_are_the_same_text(self) -> None:
        assert AsyncClient.submit_job.__doc__ == Client.submit_job.__doc__

    def test_are_looked_for_in_every_file(self) -> None:
        package = Path(str(sfumato.__file__)).parent
        files = {path.relative_to(package).with_suffix("") for path in package.rglob("*.py")}
        names = {".".join(("sfumato", *path.parts)).removesuffix(".__init__") for path in files}
        assert names == {*MODULES, "sfumato"}
        assert isinstance(import_module(MODULES[0]), ModuleType)
