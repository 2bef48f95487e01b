"""Samples of each operation for the HTTP reference: curl, Python and TypeScript, with the examples of the document."""

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

# Calls of the Python client by operation. {NAME} is an example of a parameter of the path, or of a member of the body.
PYTHON = {
    "assignPoints": "client.assign({job_id}, {points})",
    "cancelJob": "client.cancel_job({job_id})",
    "closeRound": "client.close_round({round_id})",
    "countRecords": "client.count_records({dataset_id})",
    "createDataset": 'longitude = Feature("longitude", -180, 180, "degrees")\n'
    'features = [longitude, Feature("latitude", -90, 90, "degrees")]\n'
    'client.create_dataset("commuters", features, trust="local", epsilon=8)',
    "createForecast": "algorithm = Auto(clusters=3, epsilon=1)\n"
    "client.forecast(algorithm, expected_reports=100_000, n_features=2, quality=0.9)",
    "createGrant": "client.grant({dataset_id}, 2)",
    "createJob": "job = client.submit_job({dataset_id}, ShiftedGrid(clusters=6, epsilon=2), target_reports=100_000)\n"
    "model = job.wait().result().model",
    "createKey": 'client.create_key("app 4.2", ["device"], dataset_id={dataset_id}).secret',
    "createProfileForecast": 'client.forecast_profile("job_01jd0b1v3tq5c9m8x2h7r4k6ez", ["plan", "age"], epsilon=0.3, '
    "expected_records=20_000)",
    "createRound": "client.open_round({dataset_id}, GridEncoding((16, 16)), epsilon=2, target_reports=10_000)",
    "createSeriesForecast": "client.forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=1_300_000, "
    "cycle=13)",
    "createSeries": 'client.create_series({dataset_id}, "Lunch, weekly", ShiftedGrid(epsilon=1, clusters=3), '
    'every="week", count=52, cycle=13, target_reports=500_000, time_zone="Europe/Berlin", epsilon_total=4)',
    "createWebhook": "client.create_webhook({url}, {event_types}).secret",
    "deleteDataset": "client.delete_dataset({dataset_id})",
    "deleteRecords": 'client.delete_records({dataset_id}, user="p17")',
    "deleteWebhook": "client.delete_webhook({webhook_id})",
    "getBudget": "client.budget({dataset_id})",
    "getDataset": "client.get_dataset({dataset_id})",
    "getJob": "client.get_job({job_id})",
    "getLabels": "client.report_labels({job_id})",
    "getLimits": "client.limits()",
    "getPlot": "client.plot_svg({job_id})",
    "getPlotPng": "client.plot_png({job_id})",
    "getResult": "client.result({job_id}).model",
    "getRound": "client.get_round({round_id})",
    "getSource": 'client.source("ward-1")',
    "getSeries": "client.get_series({series_id})",
    "getWebhook": "client.get_webhook({webhook_id})",
    "getWebhookDelivery": "client.get_delivery({webhook_id}, {delivery_id})",
    "listAuditEvents": "list(client.audit_events())",
    "listDatasets": "list(client.datasets())",
    "listJobs": "list(client.jobs())",
    "listKeys": "list(client.list_keys())",
    "listLedgerEntries": "list(client.ledger({dataset_id}))",
    "listRounds": "list(client.rounds({dataset_id}))",
    "listSeries": "list(client.series())",
    "getSeriesCluster": "client.get_series_cluster({series_id}, {cluster_id})",
    "createRevision": "client.revise_series({series_id}, ShiftedGrid(epsilon=0.5, clusters=4), season=4)",
    "listSeriesRevisions": "list(client.series_revisions({series_id}))",
    "getSeriesMap": "client.series_map({series_id})",
    "listSeriesClusters": "list(client.series_clusters({series_id}))",
    "listSeriesEvents": "list(client.series_events({series_id}))",
    "updateSeriesCluster": "client.name_series_cluster({series_id}, {cluster_id}, {name})",
    "listSeriesWindows": "list(client.windows({series_id}))",
    "listWebhookDeliveries": "list(client.deliveries({webhook_id}))",
    "listWebhooks": "list(client.webhooks())",
    "redeliverWebhook": "client.redeliver({webhook_id}, {delivery_id})",
    "revokeKey": "client.revoke_key({key_id})",
    "rotateKey": "client.rotate_key({key_id}, overlap_seconds={overlap_seconds}).secret",
    "rotateWebhookSecret": "client.rotate_webhook_secret({webhook_id}, overlap_seconds={overlap_seconds}).secret",
    "sendReports": "spec = client.get_round({round_id}).spec\n"
    "client.send_reports({round_id}, *perturb_records(spec, [[2.35, 48.86], [-0.13, 51.51]]))",
    "testWebhook": "client.ping_webhook({webhook_id})",
    "updateDataset": "client.update_dataset({dataset_id}, min_reports={min_reports})",
    "updateResult": "client.name_clusters({job_id}, {names})",
    "updateSeries": "client.update_series({series_id}, state={state})",
    "updateWebhook": "client.update_webhook({webhook_id}, enabled={enabled})",
    "uploadRecords": "client.upload_records({dataset_id}, {rows})",
}
# Operations without a method of the clients: devices, shufflers and monitors call them.
CURL_ONLY = {"getDeviceRounds", "getHealth", "getReadiness", "releaseRound", "streamJobEvents"}

_TYPESCRIPT = 'import { Client } from "@sfumato-dp/sdk/client";\nconst client = new Client({ url, key });'
_IMPORTED = ("Auto", "Client", "Feature", "GridEncoding", "ShiftedGrid", "perturb_records")


def render_samples(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the samples of each operation as HTML without blank lines, by the id of the operation."""
    return {
        name: "<details><summary>Samples</summary>"
        + "".join(f"<p>{language}</p><pre><code>{escape(text)}</code></pre>" for language, text in samples.items())
        + "</details>"
        for name, samples in list_samples(document).items()
    }


def list_samples(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the samples by the id of the operation and by language."""
    return {
        operation["operationId"]: dict(_samples(document, method, path, operation))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def _samples(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    name, values = operation["operationId"], _path_values(operation)
    media_type, body = read_body(document, operation)
    yield "curl", _curl(method, path.format(**values), operation, media_type, body)
    if name in CURL_ONLY:
        return
    yield "Python", _python(name, values | (body if isinstance(body, dict) else {}))
    arguments = [*values.values(), *([] if body is None else [body])]
    text = ", ".join(json.dumps(value, ensure_ascii=False) for value in arguments)
    call = f"client.{name}({text})"
    call = f"for await (const item of {call}) console.log(item);" if name[:4] == "list" else f"await {call};"
    yield "TypeScript", f"{_TYPESCRIPT}\n{call}"


def read_body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the media type of the body and its first example; the example is None without a JSON body."""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return next(iter(content), ""), None
    found = content["application/json"]
    if shown := found.get("examples"):
        return "application/json", next(iter(shown.values()))["value"]
    schema = document["components"]["schemas"][found["schema"]["$ref"].rpartition("/")[2]]
    return "application/json", schema["examples"][0]


def _path_values(operation: Mapping[str, Any]) -> dict[str, str]:
    """Return an example of each parameter of the path."""
    return {
        each["name"]: next(iter(each["examples"].values()))["value"]
        for each in operation.get("parameters", ())
        if each["in"] == "path"
    }


def _curl(method: str, path: str, operation: Mapping[str, Any], media_type: str, body: Any) -> str:
    parts = ["curl" if method == "get" else f"curl -X {method.upper()}", f'"$SFUMATO_URL{path}"']
    if operation.get("security"):
        parts.append('-H "Authorization: Bearer $SFUMATO_KEY"')
    if media_type:
        text = "@batch.bin" if body is None else shlex.quote(json.dumps(body, ensure_ascii=False))
        parts += [f'-H "Content-Type: {media_type}"', f"--data-binary {text}"]
    first, second, *rest = parts
    return " \\\n  ".join([f"{first} {second}", *rest])


def _python(name: str, values: Mapping[str, Any]) -> str:
    code = PYTHON[name].format_map({key: _Literal(value) for key, value in values.items()})
    imported = [each for each in _IMPORTED if each == "Client" or f"{each}(" in code]
    return f"from sfumato import {', '.join(imported)}\nclient = Client()  # reads SFUMATO_URL and SFUMATO_KEY\n{code}"


class _Literal:
    """A value that is formatted as Python code."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __format__(self, _spec: str) -> str:
        return json.dumps(self._value, ensure_ascii=False) if isinstance(self._value, str) else repr(self._value)
