"""The examples in the package's docstrings. test_live.py runs those that need a service."""

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import sfumato
from sfumato.api.client import AsyncClient, Client

# tests/sdks/test_python.py runs these, because it installs pandas.
NEEDS_PANDAS = {"sfumato.model.frames.clusters_frame"}

MODULES = sorted(module.name for module in pkgutil.walk_packages(sfumato.__path__, "sfumato."))

# Entry points of the package, which need an example.
ENTRY_POINTS = (
    "privacy.accounting.cost",
    "privacy.accounting.parse_epsilon",
    "device.bulk.perturb_records",
    "api.client.AsyncClient",
    "api.client.Client",
    "model.cluster_model.ClusterModel.assign",
    "device.device.Device",
    "device.device.Device.dry_run",
    "device.dry_runs.dry_run",
    "forecast.estimates.forecast",
    "model.frames.clusters_columns",
    "model.frames.clusters_frame",
    "privacy.ledger.verify",
    "mechanisms.design",
    "specs.rounds.Participation.between",
    "device.store.FileStore",
    "api.administration.AdministrationCalls.limits",
    "api.calls.Calls.create_key",
    "api.calls.Calls.forecast",
    "api.datasets.DatasetCalls.budget",
    "api.datasets.DatasetCalls.create_dataset",
    "api.datasets.DatasetCalls.send_reports",
    "api.datasets.DatasetCalls.verify_ledger",
    "api.jobs.JobCalls.send_as_devices",
    "api.jobs.JobCalls.submit_job",
    "api.records.RecordCalls.upload_records",
    "api.series.SeriesCalls.create_series",
)


def list_examples(name: str) -> list[doctest.DocTest]:
    """Return the examples in a module's docstrings."""
    examples = doctest.DocTestFinder(exclude_empty=True).find(import_module(name), name)
    return [each for each in examples if each.examples and each.name not in NEEDS_PANDAS]


def run_example(test: doctest.DocTest) -> str:
    """Return the differences between the output and the docstring."""
    differences: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=differences.append, clear_globs=False)
    return "".join(differences)


EXAMPLES = [test for name in MODULES for test in list_examples(name)]
EXAMPLES_WITH_SERVICE = [test for test in EXAMPLES if any("(url, key" in each.source for each in test.examples)]
EXAMPLES_ALONE = [test for test in EXAMPLES if test not in EXAMPLES_WITH_SERVICE]


class TestExamples:
    @pytest.mark.parametrize("example", EXAMPLES_ALONE, ids=lambda example: example.name)
    def test_docstrings_are_true(self, example: doctest.DocTest) -> None:
        assert run_example(example) == ""

    def test_every_entry_point_has_an_example(self) -> None:
        shown = {test.name for test in EXAMPLES} | NEEDS_PANDAS
        assert {f"sfumato.{name}" for name in ENTRY_POINTS} <= shown
        assert AsyncClient.submit_job.__doc__ == Client.submit_job.__doc__

    def test_a_wrong_example_fails(self) -> None:
        wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
        assert "Expected:" in run_example(wrong) or "Differences" in run_example(wrong)

    def test_every_file_is_searched(self) -> None:
        package = Path(str(sfumato.__file__)).parent
        files = {path.relative_to(package).with_suffix("") for path in package.rglob("*.py")}
        names = {".".join(("sfumato", *path.parts)).removesuffix(".__init__") for path in files}
        assert names == {*MODULES, "sfumato"}
