"""The examples of docs/errors.md: one real response for each problem code, with cause, place, limit and remedy."""

import json
import re
from typing import Any

import httpx
import pytest

from models import errors
from service.http import problems
from service.http.problems import from_exception
from service.schemas.base import EXAMPLE_ULID
from tests.service.api import SQLITE_ONLY, UNIFORM, Api, unknown
from tests.service.shuffler import TERMS, send, shuffled_dataset
from tests.test_docs import read

BEGIN, END = "<!-- begin: examples -->", "<!-- end: examples -->"
SKETCH = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 4}
OVER_RECORDS = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 2}
CSV = {"content": b"x,y\n0.5,0.5\n", "headers": {"content-type": "text/csv"}}
OUTSIDE = CSV | {"content": b"x,y\n10.5,0.5\n"}
# A limit or an allowed set is concerned; the detail, a member or a header states it.
LIMITED = {
    "budget_exhausted",
    "forbidden",
    "insufficient_reports",
    "method_not_allowed",
    "no_records",
    "payload_too_large",
    "too_few_reports",
    "unsupported_media_type",
    "validation_failed",
}
REMEDY = re.compile(
    r"\b(send|use|request|wait|set|grant|collect|increase|reduce|fetch|submit|upload|repeat|report|check|read|lower"
    r"|must be)\b",
    re.IGNORECASE,
)


def make_examples(api: Api) -> dict[str, dict[str, Any]]:
    """Return one problem document for each code, from requests as far as a request can cause it here."""
    local, central = api.dataset(), api.dataset(trust="central")["id"]
    dataset_id, records = local["id"], f"/datasets/{central}/records"
    empty = api.dataset(trust="central")["id"]
    closed = api.round(dataset_id)["id"]
    api.made(f"/rounds/{closed}/close?allow_empty=true", None)
    job, queued = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 1000}, api.job(dataset_id)["id"]
    api.post(records, **CSV)
    api.post("/jobs", job, headers={"Idempotency-Key": "one"})
    answers = [
        api.post("/datasets", content=b"{", headers={"content-type": "application/json"}),
        api.http.get("/v1/datasets"),
        api.key("device").get("/datasets"),
        api.get(f"/datasets/{unknown('ds')}"),
        api.request("PUT", "/datasets", json={}),
        api.post(records, **CSV),
        api.post(f"/datasets/{empty}/records", **OUTSIDE),
        api.post("/jobs", {"dataset_id": empty, "algorithm": OVER_RECORDS}),
        api.post("/jobs", job | {"algorithm": UNIFORM | {"epsilon": 32}}),
        api.report(closed),
        api.get(f"/jobs/{queued}/result"),
        api.post("/jobs", job | {"algorithm": OVER_RECORDS}),
        api.patch(f"/datasets/{dataset_id}", {"name": "new"}, headers={"If-Match": '"old"'}),
        api.post("/datasets", content=b" " * (1 << 21), headers={"content-type": "application/json"}),
        api.post(records, content=b"x", headers={"content-type": "text/plain"}),
        api.post("/jobs", job | {"min_reports": 1}, headers={"Idempotency-Key": "one"}),
        api.post("/jobs", job | {"target_reports": 0, "min_reports": -1}),
        api.report(api.round(dataset_id)["id"], slot=99),
        api.post("/jobs", job | {"algorithm": SKETCH, "target_reports": 10}),
        send(api, api.round(shuffled_dataset(api), **TERMS)["id"], b"x"),
    ]
    documents = [_document(answer) for answer in answers]
    others = [
        from_exception(errors.TooFewReports(n_reports=12, min_reports=100)),
        problems.RequestTimeout(),
        problems.RateLimited(),
        problems.HeadTooLarge(),
        from_exception(KeyError()),
        problems.Unavailable(),
    ]
    documents += [json.loads(other.body("0" * 16)) for other in others]
    return {document["code"]: _normalise(document) for document in documents}


def _document(answer: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = answer.json()
    return document


def _normalise(document: dict[str, Any]) -> dict[str, Any]:
    text = re.sub(r"_[0-9a-z]{26}\b", f"_{EXAMPLE_ULID}", json.dumps(document, ensure_ascii=False))
    normal: dict[str, Any] = json.loads(text) | {"request_id": "5f0c9d2e7a41b8c3"}
    return normal


def render(examples: dict[str, dict[str, Any]]) -> str:
    """Return the examples as Markdown, in the order of the codes."""
    parts = [
        f"### `{document['code']}`\n\n```json\n{json.dumps(document, indent=2, ensure_ascii=False)}\n```"
        for _, document in sorted(examples.items())
    ]
    return "\n\n".join(parts)


@pytest.fixture
def examples(api: Api) -> dict[str, dict[str, Any]]:
    """Return the examples of a gateway with default limits."""
    return make_examples(api)


@SQLITE_ONLY
class TestExamples:
    def test_exist_for_every_code_and_are_those_of_the_page(self, examples: dict[str, dict[str, Any]]) -> None:
        assert set(examples) == {problem.code for problem in problems.ALL_PROBLEMS}
        _, _, rest = read("docs/errors.md").partition(BEGIN)
        block = rest.partition(END)[0].strip()
        assert block == render(examples), f"replace the block by:\n{render(examples)}"

    def test_name_the_class_the_cause_the_place_the_limit_and_the_remedy(
        self, examples: dict[str, dict[str, Any]]
    ) -> None:
        titles = {problem.code: problem.title for problem in problems.ALL_PROBLEMS}
        missing = []
        for code, document in examples.items():
            assert document["title"] == titles[code]
            detail = document["detail"]
            checks = {
                "what": detail != document["title"] and len(detail.split()) >= 5,
                "where": "errors" not in document or all(each["pointer"] for each in document["errors"]),
                "limit": code not in LIMITED or bool(re.search(r"\d|one of|scope|Allow|send ", detail)),
                "remedy": REMEDY.search(detail) is not None,
            }
            missing += [f"{code} lacks {name}: {detail}" for name, is_met in checks.items() if not is_met]
        assert not missing, "\n".join(missing)
