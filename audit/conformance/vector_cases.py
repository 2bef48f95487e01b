"""Cases of the published vectors: every byte, every random word, and every answer of a service."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from audit.conformance.bench import Bench, Case, Difference, expect, expect_error
from audit.conformance.scripted_service import Answer

FINAL_OUTCOMES = {"acknowledged": "sent", "closed": "too_late"}


def read_vectors(directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the vectors of one file."""
    vectors: list[dict[str, Any]] = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))[name]
    return vectors


def create_vector_cases(directory: Path) -> Iterator[Case]:
    """Yield the cases of `reports`, `caps`, `devices`, `refusals` and `answers`."""
    for vector in read_vectors(directory, "reports"):
        yield Case("reports", vector["name"], partial(_check_reports, vector=vector))
    for vector in read_vectors(directory, "caps"):
        yield Case("caps", vector["epsilon"], partial(_check_cap, vector=vector))
    for name in ("devices", "refusals"):
        for vector in read_vectors(directory, name):
            yield Case(name, vector["name"], partial(_check_calls, vector=vector))
    first = read_vectors(directory, "devices")[0]["calls"][0]
    for vector in read_vectors(directory, "answers"):
        yield Case("answers", vector["name"], partial(_check_answer, vector=vector, call=first))


def _check_reports(bench: Bench, vector: dict[str, Any]) -> None:
    for each in vector["reports"]:
        answer = bench.implementation.call(
            "perturb", spec=vector["spec"], record=each["record"], entropy=each["entropy"]
        )
        if "error" in answer:
            raise Difference(f"error {answer['error']!r} for the record {each['record']}")
        expected = {
            "slot": each["slot"],
            "value": each["value"],
            "words_left": 0,
            "epsilon_nano": vector["epsilon_nano"],
            "value_bytes": vector["value_bytes"],
        }
        expect(answer["result"], expected, f"report of {each['record']}")


def _check_cap(bench: Bench, vector: dict[str, Any]) -> None:
    answer = bench.implementation.call("parse_epsilon", epsilon=vector["epsilon"])
    expect(answer.get("result"), {"epsilon_nano": vector["epsilon_nano"]}, "nano-epsilon")


def _check_calls(bench: Bench, vector: dict[str, Any]) -> None:
    for call in vector["calls"]:
        bench.service.reset(call["open"]["rounds"])
        names = ("cap", "cap_per_period", "accept_kept_reports", "features", "attributes")
        options = {name: vector[name] for name in names}
        options["clock"] = call["clock"]
        answer = bench.report(call["record"], entropy=call["entropy"], **options)
        if call["error"]:
            expect_error(answer, call["error"])
        else:
            if "error" in answer:
                raise Difference(f"error {answer['error']!r}")
            expect(answer["result"]["outcome"], call["outcome"], "outcome")
            expect(answer["result"]["rounds"], call["rounds"], "rounds")
        expect(answer.get("words_left", answer.get("result", {}).get("words_left")), 0, "words that were not drawn")
        sent = [{"id": each.round_id, "body": json.loads(each.body)} for each in bench.service.sent]
        expect(sent, [{"id": each["id"], "body": json.loads(each["body"])} for each in call["sent"]], "requests")


def _check_answer(bench: Bench, vector: dict[str, Any], call: dict[str, Any]) -> None:
    service, state = bench.service, vector["state"]
    service.reset(call["open"]["rounds"])
    answer = Answer(vector["status"], vector["body"].encode(), {"Content-Type": vector["content_type"]})
    service.replies = [answer, answer]  # after 421, a browser's `fetch` sends a request once more
    first = bench.report(call["record"])
    n_first, service.replies = len(service.sent), []
    expect(first.get("result", {}).get("outcome"), FINAL_OUTCOMES.get(state), "outcome of the answer")
    expect(_read_memory(first)["pending"], ["rnd_1"] if state == "pending" else [], "pending rounds")
    again = bench.report(call["record"])
    expect(again.get("result", {}).get("outcome"), "sent" if state == "pending" else "already_answered", "next outcome")
    expect(len(service.sent), n_first + (state == "pending"), "number of requests")
    expect(len({each.body for each in service.sent}), 1, "number of different requests")
    expect(_read_memory(again)["spent"], call["open"]["rounds"][0]["epsilon"], "spent epsilon")


def _read_memory(answer: dict[str, Any]) -> dict[str, Any]:
    """Return `spent` and `pending`, which a result and an error have."""
    memory = answer.get("result", answer)
    if "spent" not in memory or "pending" not in memory:
        raise Difference("the answer of `report` lacks spent or pending")
    return dict(memory)
