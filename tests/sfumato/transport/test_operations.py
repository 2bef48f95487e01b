"""Both clients reach every operation of the API description, or the operation is listed with a reason."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest

from sfumato.api.client import AsyncClient, Client
from sfumato.api.resources import Shuffler
from sfumato.device.bulk import perturb_records
from sfumato.specs import Feature, GridEncoding, PrivateKmeans, ShiftedGrid, UniformGrid
from sfumato.transport.batches import Batch
from tests.contract.schema import misfits, resolve
from tests.sfumato.answers import RESULT, ROUND
from tests.sfumato.api.test_calls import WIRE as FORECAST
from tests.sfumato.scripted import round_spec

DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text())

NOT_REACHED = {
    "getHealth": "a probe of the operator, outside of /v1 and without a key",
    "getReadiness": "a probe of the operator, outside of /v1 and without a key",
    "getDeviceRounds": "for devices: `Device`",
    "streamJobEvents": "the client long-polls getJob, which passes every proxy and has the same states",
}

ULID = "01jd0b1v3tq5c9m8x2h7r4k6ez"
DS, RND, JOB, SER, CLU, KEY, WHK, MSG = (
    f"{prefix}_{ULID}" for prefix in ("ds", "rnd", "job", "ser", "clu", "key", "whk", "msg")
)
FEATURES = [Feature("east", 0, 10, "km"), Feature("north", 0, 10)]
RECORDS = [[1.5, 2.5], [3.5, 4.5]]
SHUFFLER = Shuffler("Example", "https://shuffler.example", "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
REPORTS = perturb_records(round_spec(), RECORDS[:1])

# Calls of each operation, with its different bodies.
CALLS: dict[str, list[Callable[[Any], Any]]] = {
    "listAuditEvents": [
        lambda c: c.audit_events(),
        lambda c: c.audit_events(dataset_id=DS, action="dataset.created", actor=KEY),
    ],
    "listDatasets": [lambda c: c.datasets()],
    "createDataset": [
        lambda c: c.create_dataset("a", FEATURES, epsilon=2),
        lambda c: c.create_dataset("a", FEATURES, epsilon=1, trust="central", user_feature="who", delta=1e-6),
        lambda c: c.create_dataset("a", FEATURES, epsilon=1, trust="shuffled", shuffled=(1, 1e-6), shuffler=SHUFFLER),
    ],
    "getDataset": [lambda c: c.get_dataset(DS)],
    "updateDataset": [
        lambda c: c.update_dataset(DS, name="b", min_reports=5, keep_reports=True, if_match='"abc"'),
    ],
    "updateResult": [lambda c: c.name_clusters(JOB, ["a", ""]), lambda c: c.name_clusters(JOB, [])],
    "deleteDataset": [lambda c: c.delete_dataset(DS)],
    "getBudget": [lambda c: c.budget(DS)],
    "getSource": [lambda c: c.source("ward-1"), lambda c: c.source(None, name="a")],
    "createGrant": [lambda c: c.grant(DS, 1), lambda c: c.grant(DS, 0, delta=1e-6)],
    "listLedgerEntries": [lambda c: c.ledger(DS)],
    "uploadRecords": [
        lambda c: c.upload_records(DS, RECORDS),
    ],
    "countRecords": [lambda c: c.count_records(DS)],
    "deleteRecords": [lambda c: c.delete_records(DS, everything=True), lambda c: c.delete_records(DS, user="u")],
    "createRound": [
        lambda c: c.open_round(DS, GridEncoding((4, 4)), epsilon=1, target_reports=1000),
        lambda c: c.open_round(DS, GridEncoding((4,)), epsilon=1, target_reports=9, min_batch=9, honest_share=0.5),
    ],
    "listRounds": [lambda c: c.rounds(DS)],
    "getRound": [lambda c: c.get_round(RND)],
    "closeRound": [lambda c: c.close_round(RND), lambda c: c.close_round(RND, allow_empty=True)],
    "releaseRound": [lambda c: c.release_round(RND, Batch(bytes(64), 1, b"x"))],
    "sendReports": [lambda c: c.send_reports(RND, *REPORTS)],
    "createForecast": [
        lambda c: c.forecast(ShiftedGrid(epsilon=2, clusters=3), expected_reports=1000, n_features=2, quality=0.9),
        lambda c: c.forecast(ShiftedGrid(epsilon=2, clusters=3), expected_reports=1000, dataset_id=DS),
    ],
    "createProfileForecast": [lambda c: c.forecast_profile(JOB, ["plan", "age"], epsilon=0.3, expected_records=1000)],
    "createJob": [
        lambda c: c.submit_job(DS, ShiftedGrid(epsilon=2, clusters=3), target_reports=1000, allow_insufficient=True),
        lambda c: c.submit_job(
            DS, UniformGrid(epsilon=1), target_reports=9, min_batch=9, honest_share=0.5, shuffled_delta=1e-7
        ),
        lambda c: c.submit_job(DS, UniformGrid(epsilon=1), round_ids=[RND]),
        lambda c: c.submit_job(DS, PrivateKmeans(epsilon=1, clusters=3)),
    ],
    "createSeries": [
        lambda c: c.create_series(DS, "a", ShiftedGrid(epsilon=1), count=52, cycle=13, target_reports=500_000),
        lambda c: c.create_series(
            DS,
            "a",
            ShiftedGrid(epsilon=1),
            every="day",
            count=9,
            cycle=3,
            target_reports=9,
            first="2030-01-01",
            time_zone="Europe/Berlin",
            epsilon_total=3,
            allow_insufficient=True,
        ),
    ],
    "createSeriesForecast": [
        lambda c: c.forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=1000, cycle=2),
        lambda c: c.forecast_series(
            {"type": "shifted_grid", "epsilon": 1}, dataset_id=DS, target_reports=9, cycle=1, least_change=0.0
        ),
    ],
    "listSeries": [lambda c: c.series(), lambda c: c.series(DS)],
    "getSeries": [lambda c: c.get_series(SER)],
    "updateSeries": [lambda c: c.update_series(SER, name="b", state="paused")],
    "listSeriesWindows": [lambda c: c.windows(SER)],
    "createRevision": [
        lambda c: c.revise_series(SER, ShiftedGrid(epsilon=0.5), season=4),
        lambda c: c.revise_series(
            SER,
            target_reports=9,
            min_reports=1,
            least_change=0.1,
            min_batch=5,
            honest_share=0.5,
            shuffled_delta=1e-7,
            allow_insufficient=True,
        ),
    ],
    "listSeriesRevisions": [lambda c: c.series_revisions(SER)],
    "getSeriesMap": [lambda c: c.series_map(SER), lambda c: c.series_map(SER, 3, pooled=False)],
    "listSeriesClusters": [lambda c: c.series_clusters(SER)],
    "getSeriesCluster": [lambda c: c.get_series_cluster(SER, CLU)],
    "updateSeriesCluster": [lambda c: c.name_series_cluster(SER, CLU, "west")],
    "listSeriesEvents": [lambda c: c.series_events(SER)],
    "listJobs": [lambda c: c.jobs(), lambda c: c.jobs(DS)],
    "getJob": [lambda c: c.get_job(JOB)],
    "cancelJob": [lambda c: c.cancel_job(JOB)],
    "getResult": [lambda c: c.result(JOB)],
    "getLabels": [lambda c: c.report_labels(JOB)],
    "getPlot": [lambda c: c.plot_svg(JOB)],
    "getPlotPng": [lambda c: c.plot_png(JOB)],
    "assignPoints": [lambda c: c.assign(JOB, RECORDS)],
    "createKey": [lambda c: c.create_key("k", ["device"], dataset_id=DS)],
    "listKeys": [lambda c: c.list_keys()],
    "revokeKey": [lambda c: c.revoke_key(KEY)],
    "rotateKey": [lambda c: c.rotate_key(KEY, overlap_seconds=60)],
    "getLimits": [lambda c: c.limits()],
    "createWebhook": [
        lambda c: c.create_webhook("https://a.example/", ["job.succeeded"], dataset_id=DS, description="d"),
    ],
    "listWebhooks": [lambda c: c.webhooks()],
    "getWebhook": [lambda c: c.get_webhook(WHK)],
    "updateWebhook": [
        lambda c: c.update_webhook(WHK, url="https://b.example/", event_types=["job.failed"], enabled=True),
    ],
    "deleteWebhook": [lambda c: c.delete_webhook(WHK)],
    "rotateWebhookSecret": [lambda c: c.rotate_webhook_secret(WHK, overlap_seconds=0)],
    "testWebhook": [lambda c: c.ping_webhook(WHK)],
    "listWebhookDeliveries": [lambda c: c.deliveries(WHK), lambda c: c.deliveries(WHK, state="failed")],
    "getWebhookDelivery": [lambda c: c.get_delivery(WHK, MSG)],
    "redeliverWebhook": [lambda c: c.redeliver(WHK, MSG)],
}

# Replacements of examples that are valid in each part, but not as a whole.
SOUND: dict[str, Any] = {
    "createRound": ROUND,
    "getRound": ROUND,
    "closeRound": ROUND,
    "listRounds": {"items": [ROUND], "next_cursor": None},
    "createForecast": FORECAST,
    "getResult": RESULT,
    "updateResult": RESULT,
    "getSeriesMap": {
        "window": 3,
        "pooled": True,
        "model": RESULT["model"],
        "cluster_ids": [CLU, None],
        "weights": [{"window": 3, "weight": 1.0}],
        "is_provisional": True,
    },
}

OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
EACH = [pytest.param(name, call, id=f"{name}-{n}") for name, calls in CALLS.items() for n, call in enumerate(calls)]


class Documented:
    """A service that returns documented examples and checks requests against the description."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = self._named(request)
        self.reached.append(name)
        operation = OPERATIONS[name][2]
        self._fits(request, operation)
        status, answer = next((s, a) for s, a in operation["responses"].items() if s.startswith("2"))
        for media, content in answer.get("content", {}).items():
            if media == "application/json":
                return httpx.Response(int(status), json=SOUND.get(name) or _example(content))
            return httpx.Response(int(status), text="<svg/>", headers={"Content-Type": media})
        return httpx.Response(int(status))

    def _named(self, request: httpx.Request) -> str:
        for name, (method, path, _) in OPERATIONS.items():
            if method == request.method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path):
                return name
        raise AssertionError(f"{request.method} {request.url.path} has no description")

    def _fits(self, request: httpx.Request, operation: dict[str, Any]) -> None:
        named = {each["name"]: each for each in operation.get("parameters", [])}
        assert set(request.url.params) <= named.keys()
        for name, value in request.url.params.items():
            if named[name]["schema"].get("type") == "string":
                assert not list(misfits(DOCUMENT, named[name]["schema"], value))
        assert ("Idempotency-Key" in request.headers) == ("Idempotency-Key" in named)
        if "requestBody" not in operation:
            assert not request.content
            return
        media = request.headers["Content-Type"]
        schema = operation["requestBody"]["content"][media].get("schema", {})
        if media == "application/json":
            assert not list(misfits(DOCUMENT, schema, json.loads(request.content)))


def _example(content: dict[str, Any]) -> Any:
    """Return an example of a response: the last one, which is about reports if there are several."""
    if examples := content.get("examples"):
        return list(examples.values())[-1]["value"]
    schema = content["schema"]
    return resolve(DOCUMENT, schema["$ref"])["examples"][0]


def blocking(call: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    """Return the result of a call with a Client, and the operations it reached."""
    service = Documented()
    with Client("http://service.example", "sfk_x", transport=httpx.MockTransport(service), retry_seconds=0) as client:
        made = call(client)
        return (list(made) if isinstance(made, Iterator) else made), service.reached


def awaited(call: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    """Return the result of a call with an AsyncClient, and the operations it reached."""
    service = Documented()

    async def main() -> Any:
        transport = httpx.MockTransport(service)
        async with AsyncClient("http://service.example", "sfk_x", transport=transport, retry_seconds=0) as client:
            made = call(client)
            return [item async for item in made] if isinstance(made, AsyncIterator) else await made

    return asyncio.run(main()), service.reached


def methods_called(call: Callable[[Any], Any]) -> str:
    """Return the name of the client's method that a call uses."""
    client = MagicMock()
    call(client)
    ((name, _, _),) = client.method_calls
    return str(name)


def check_type(value: Any, annotation: Any) -> None:
    """Check that a value, or the items of a list, have an annotated type."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (Iterator, AsyncIterator):
        assert isinstance(value, list)
        assert all(type(item) is arguments[0] for item in value)
    elif get_origin(annotation) is np.ndarray:
        assert value.dtype == get_args(arguments[1])[0]
    else:
        assert type(value) is (type(None) if annotation is None else annotation)


class TestEveryOperation:
    def test_is_reached_or_listed_with_a_reason(self) -> None:
        assert CALLS.keys() | NOT_REACHED.keys() == OPERATIONS.keys()
        assert not CALLS.keys() & NOT_REACHED.keys()
        assert all(NOT_REACHED.values())

    @pytest.mark.parametrize(("name", "call"), EACH)
    def test_is_called_as_described_and_has_the_same_result_in_both_clients(
        self, name: str, call: Callable[[Any], Any]
    ) -> None:
        results = []
        for run in (blocking, awaited):
            result, reached = run(call)
            assert reached == [name]
            assert not isinstance(result, list) or result
            client, method = (Client, AsyncClient)[len(results)], methods_called(call)
            returns = inspect.signature(getattr(client, method)).return_annotation
            check_type(result, returns)
            results.append(repr(result).replace("AsyncSubmittedJob", "SubmittedJob"))
        assert results[0] == results[1] or name == "getLabels"  # labels are fetched on iteration


class TestClients:
    def test_have_the_same_documented_methods(self) -> None:
        own = {name for name in dir(Client) if not name.startswith("_")}
        assert own == {name for name in dir(AsyncClient) if not name.startswith("_")}
        for name in own - {"close"}:
            one, other = getattr(Client, name), getattr(AsyncClient, name)
            assert one.__doc__ == other.__doc__
            assert one.__doc__.strip()
            assert inspect.signature(one).parameters == inspect.signature(other).parameters
            assert one.__name__ == name
