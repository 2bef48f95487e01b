"""The client of openapi-python-client: its generation without warnings, and a call of every operation of a service."""

import importlib
import io
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.contract.generated import Objects, Operation, operations
from tests.sdks.conftest import serving
from tests.sdks.generated_calls import DOCUMENT, Sent, calls
from tests.sdks.packages import ROOT, generator, made_once, run
from tests.service.api import Api

pytestmark = [pytest.mark.slow, pytest.mark.release]

PACKAGE = "sfumato_api"  # the name in openapi/generators/python.yaml


def generate(home: Path) -> Path:
    """Generate the client in a new environment."""
    command = ("tools/sdks.py", "--only", "python", "--into", home)
    printed = run(generator(home), *command, cwd=ROOT)  # fails on a warning of the generator
    assert printed.endswith("no problems\n")
    return home / "python"


@pytest.fixture(scope="module")
def package(shared: Path) -> Iterator[ModuleType]:
    """Import the client that one process of the test run generates."""
    directory = str(made_once(shared, "python-client", generate))
    sys.path.insert(0, directory)
    yield importlib.import_module(PACKAGE)
    sys.path.remove(directory)
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a service, and return a client with its first key."""
    with serving(tmp_path_factory.mktemp("service") / "home") as api:
        yield api


def snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def call(package: ModuleType, api: Api, operation: Operation, sent: Sent) -> Any:
    """Call an operation by the generated function."""
    tag = operation.definition["tags"][0]
    module = importlib.import_module(f"{package.__name__}.api.{tag}.{snake(operation.name)}")
    models, types = (importlib.import_module(f"{package.__name__}.{name}") for name in ("models", "types"))
    given = {name + "_" * (name == "all"): value for name, value in sent.parameters.items()}
    if sent.media_type == "application/json" and operation.json_body is not None and sent.content is not None:
        name = operation.json_body["schema"]["$ref"].rpartition("/")[2].replace("ReportUpload", "ReportColumns")
        given["body"] = getattr(models, name).from_dict(json.loads(sent.content))
    elif sent.content is not None:
        given["body"] = types.File(io.BytesIO(sent.content), mime_type=sent.media_type)
    with package.AuthenticatedClient(str(api.http.base_url), api.secret, raise_on_unexpected_status=True) as client:
        return module.sync_detailed(client=client, **given)


def test_all_modules_of_the_generated_client_are_imported(package: ModuleType) -> None:
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
    for name in names:
        importlib.import_module(name)
    assert {name.rpartition(".")[2] for name in names} >= {snake(each.name) for each in operations(DOCUMENT)}
    assert not [name for name in names if re.search(r"type_\d", name)]  # invented names


@pytest.mark.parametrize("operation", operations(DOCUMENT), ids=lambda operation: operation.name)
def test_generated_client_calls(package: ModuleType, api: Api, operation: Operation) -> None:
    objects = Objects(DOCUMENT, api)
    success = {int(status): answer for status, answer in operation.definition["responses"].items() if status < "4"}
    api.dataset()  # it has no label, so that the source `-` exists
    for sent in calls(operation, objects):
        answer = call(package, api, operation, sent)
        assert answer.status_code in success, answer.content
        media_types = [*success[answer.status_code].get("content", {})]
        if media_types == ["application/json"]:
            # the client's format of a time: without a fraction if it is zero
            text = re.sub(r"(?:\.0{6}|(\.\d{6}))Z", lambda time: (time[1] or "") + "+00:00", answer.content.decode())
            assert answer.parsed.to_dict() == json.loads(text)
        else:
            assert (answer.parsed is not None) == bool(media_types)
