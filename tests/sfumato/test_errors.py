"""Every exception of the packages can be pickled and copied, so a pool of processes raises it again."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from clustering.errors import TooFewReports
from models.database.schema import SchemaInUse
from models.errors import ChangeRejected
from sfumato import Client
from sfumato.errors import ApiProblem, JobTimeout, SfumatoError
from sfumato.transport.exchange import TemporaryProblem
from tests.sfumato.answers import JOB

PROBLEM = {"code": "budget_exhausted", "title": "t", "status": 409, "detail": "nothing is free"}
VALUES = {"status": 409, "problem": PROBLEM, "job": SimpleNamespace(id="job_1", state="running"), "short": "delta"}


PARENTS = (
    TooFewReports,
    SchemaInUse,
    ChangeRejected,
    TemporaryProblem,
)  # one class of each module, which the import declares


def kinds(parent: type[SfumatoError] = SfumatoError) -> Iterator[type[SfumatoError]]:
    yield parent
    for kind in parent.__subclasses__():
        yield from kinds(kind)


def make(kind: type[SfumatoError]) -> SfumatoError:
    """Return an exception with a value for each parameter of its constructor."""
    if kind.__init__ is Exception.__init__ or kind.__init__ is TimeoutError.__init__:
        return kind("the reason")
    parameters = list(inspect.signature(kind).parameters.values())
    values = {each.name: VALUES.get(each.name, 3) for each in parameters}
    positional = [values.pop(each.name) for each in parameters if each.kind is not each.KEYWORD_ONLY]
    return kind(*positional, **values)


def spend(_: int) -> None:
    raise ApiProblem(409, PROBLEM)


@pytest.mark.parametrize("kind", sorted({*kinds(), *PARENTS}, key=str))
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])  # noqa: S301
def test_a_copy_is_the_same_error(kind: type[SfumatoError], again: Any) -> None:
    error = make(kind)
    error.add_note("while the job ran")
    copied = again(error)
    assert type(copied) is kind
    assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))


def test_a_pool_raises_the_problem_again() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(ApiProblem) as raised:
        pool.submit(spend, 1).result(timeout=60)
    assert (raised.value.status, raised.value.problem) == (409, PROBLEM)


def test_a_job_is_pickled_without_its_client_and_key() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=JOB))
    with Client("http://service.example", "sfk_secret", transport=transport) as client:
        error = JobTimeout(client.get_job("job_1"), 3.0)
        pickled = pickle.dumps(error)
        assert copy.copy(error).job.client is client
    assert b"sfk_secret" not in pickled
    assert pickle.loads(pickled).job.id == error.job.id  # noqa: S301
