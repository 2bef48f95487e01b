"""The table of inputs and conditions that a device must refuse, with the same code in each language."""

import math
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from typing import Any

from audit.conformance.bench import WHOLE, Bench, Case, Difference, expect, expect_error, expect_outcome
from audit.conformance.scripted_service import Answer, create_problem

RECORD = [0.6, 0.2]
ROUND: dict[str, Any] = {
    "id": "rnd_1",
    "collection_id": "rnd_1",
    "index": 0,
    "epsilon": 1.1,
    "keep_reports": False,
    "spec": {
        "version": 1,
        "features": [{"name": "east", "lower": 0, "upper": 1}, {"name": "north", "lower": 0, "upper": 1}],
        "encoding": {"type": "grid", "cells": [2, 2]},
        "mechanism": {"type": "grr", "n_symbols": 4, "keep_threshold": str(2**63)},
        "participation": WHOLE,
    },
}
PLAN = {"kind": "categorical", "name": "plan", "values": ["free", "pro"]}
EPSILON = math.log(3)  # ε of the round
BAD_RECORDS: dict[str, object] = {
    "a value is not a number": [{"number": "nan"}, 0.2],
    "a value is infinite": [{"number": "inf"}, 0.2],
    "a value is minus infinite": [0.6, {"number": "-inf"}],
    "a value is text": ["0.6", 0.2],
    "a value is true": [True, 0.2],
    "a value is null": [None, 0.2],
    "a value is a list": [[0.6], 0.2],
    "the record is text": "0.6",
    "the record is a number": 0.6,
    "the record is null": None,
    "the record is empty": [],
    "a value is an object": [{}, 0.2],
    "a value has more digits than a number": [10**400, 0.2],
    "the record has too few values": [0.6],
    "the record has too many values": [0.6, 0.2, 0.1],
    "a named value is not a number": {"east": {"number": "nan"}, "north": 0.2},
    "a named value is text": {"east": "0.6", "north": 0.2},
}
BAD_CAPS = (
    *("0", "-1", "32.000000001", "33", "1e-7", "1.0000000001", "1e400", "1e-400", "1" * 100),
    *("nan", "inf", "Infinity", "one", "", " ", " 1", "1 ", "1_0", "1,5", "0x1", "1e", "\u0661"),
)
BAD_URLS = (
    *("", "127.0.0.1", "ftp://127.0.0.1", "http://", "http:///v1", "http://127.0.0.1/v1", "http://[::1", "http://:80"),
    *("http://user:secret@127.0.0.1", "http://127.0.0.1?a", "http://127.0.0.1#a", "http://127.0.0.1:65536"),
    *("http://127.0.0.1:port", "http://a b", "http://127.0.0.1:0"),
)
BAD_IDS = ("", "a/b", "..", "a b", "a\n", "\u00e4", "x" * 65)
BAD_KEYS = ("", "a b", "\u00e4", "a\n", "a\r\nHost: b")
_HUGE = 4 << 20  # bytes; a device reads 1 MiB


def create_input_cases() -> Iterator[Case]:
    """Yield the cases of bad records, stores, rounds and services."""
    for name, record in BAD_RECORDS.items():
        yield Case("inputs", name, partial(_check_record, record=record))
    options = {"cap": BAD_CAPS, "url": BAD_URLS, "dataset_id": BAD_IDS, "key": BAD_KEYS}
    for name, value in ((name, value) for name, values in options.items() for value in values):
        yield Case("inputs", f"the {name} is {value[:16]!a}", partial(_check_option, options={name: value}))
    checks: dict[str, Callable[[Bench], None]] = {
        "a latitude is beyond the pole": partial(_check_place, record=[90.5, 5.0], is_place=False),
        "a latitude and a longitude are exchanged": partial(_check_place, record=[179.5, 60.0], is_place=False),
        "a longitude stands for a missing value": partial(_check_place, record=[60.0, 999.0], is_place=False),
        "a longitude is a turn away": partial(_check_place, record=[60.0, -181.0], is_place=True),
        "a value outside of the bounds is counted": partial(_check_outside, treatment="count"),
        "a value outside of the bounds is clipped": partial(_check_outside, treatment="clip"),
        "the round is above the cap": _check_cap,
        "the round is above the cap of the period": _check_period,
        "a period is not known": partial(_check_bad_period, limit={"period": "fortnight", "epsilon": "1"}),
        "the cap of a period is not an epsilon": partial(_check_bad_period, limit={"period": "week", "epsilon": "0"}),
        "an attribute has no declaration": partial(_check_option, options={"attributes": ["plan"]}),
        "an attribute is declared twice": partial(_check_option, options={"attributes": [PLAN, PLAN]}),
        "the round has other features than the app expects": _check_features,
        "the round keeps reports": partial(_check_kept, keep_reports=True),
        "the round does not state whether it keeps reports": partial(_check_kept, keep_reports=None),
        "the dataset is shuffled, and the device is not": _check_shuffled,
        "the key is refused before a report": partial(_check_key, first=True),
        "the key is refused after a report": partial(_check_key, first=False),
        "the service does not answer": _check_silence,
        "a redirect is not followed": _check_redirect,
        "a response is too long": _check_length,
        "the list of rounds is not JSON": _check_page,
        "the clock of the device is behind": partial(_check_clock, seconds=10**9),
        "the clock of the device is ahead": partial(_check_clock, seconds=-(10**9)),
        "Retry-After is obeyed": partial(_check_retry, headers={"Retry-After": "1"}, least_seconds=1.0),
        "a temporary failure is retried with the same bytes": partial(_check_retry, headers={}, least_seconds=0.0),
    }
    for name, check in checks.items():
        yield Case("inputs", name, check)


def _check_record(bench: Bench, record: object) -> None:
    bench.service.reset([ROUND])
    answer = bench.report(record)
    expect_error(answer, "point_invalid")
    expect((bench.service.sent, answer.get("spent"), answer.get("pending")), ([], 0, []), "reports, spent and pending")


def _check_place(bench: Bench, record: list[float], is_place: bool) -> None:
    ends = {"latitude": (58.0, 71.2), "longitude": (170.0, 190.0)}
    features = [
        {"name": name, "lower": lower, "upper": upper, "unit": "degrees", "coordinate": name}
        for name, (lower, upper) in ends.items()
    ]
    bench.service.reset([{**ROUND, "spec": {**ROUND["spec"], "features": features}}])
    expect_error(bench.report(record, entropy=""), "round_refused")
    if is_place:
        expect_outcome(bench.report(record, features=features), "sent")
        return
    expect_error(bench.report(record, features=features), "point_invalid")
    expect(bench.service.sent, [], "reports")


def _check_option(bench: Bench, options: dict[str, Any]) -> None:
    bench.service.reset([ROUND])
    expect_error(bench.report(RECORD, **options), "validation_failed")
    expect((bench.service.paths, bench.store.exists()), ([], False), "requests and store")


def _check_outside(bench: Bench, treatment: str) -> None:
    spec = {**ROUND["spec"], "out_of_bounds": treatment}
    if treatment == "count":  # ln 4 for five symbols
        spec["mechanism"] = {**spec["mechanism"], "n_symbols": 5}
    bench.service.reset([{**ROUND, "epsilon": 1.5, "spec": spec}])
    result = expect_outcome(bench.report([7.5, 0.2]), "sent")
    expect(result["rounds"][0]["outside"], ["east"], "features outside")


def _check_cap(bench: Bench) -> None:
    bench.service.reset([ROUND])
    answer = bench.report(RECORD, cap="1")
    expect_error(answer, "cap_exceeded")
    expect((bench.service.sent, answer.get("spent")), ([], 0), "reports and spent")


def _check_period(bench: Bench) -> None:
    bench.service.reset([ROUND])
    answer = bench.report(RECORD, cap_per_period={"period": "week", "epsilon": "1"})
    expect_error(answer, "cap_exceeded")
    expect((answer.get("spent"), answer.get("pending")), (0, []), "spent epsilon and pending rounds")
    expect_outcome(bench.report(RECORD, cap_per_period={"period": "week", "epsilon": "1.2"}), "sent")


def _check_bad_period(bench: Bench, limit: dict[str, str]) -> None:
    bench.service.reset([ROUND])
    expect_error(bench.report(RECORD, cap_per_period=limit), "validation_failed")
    expect(bench.service.sent, [], "reports")


def _check_features(bench: Bench) -> None:
    bench.service.reset([ROUND])
    own = [{"name": "east", "lower": 0, "upper": 2}, {"name": "north", "lower": 0, "upper": 1}]
    expect_error(bench.report(RECORD, features=own), "round_refused")
    expect(bench.service.sent, [], "reports")
    expect_outcome(bench.report(RECORD, features=ROUND["spec"]["features"]), "sent")


def _check_kept(bench: Bench, keep_reports: bool | None) -> None:
    members = {**ROUND, "keep_reports": keep_reports}
    bench.service.reset([{name: value for name, value in members.items() if value is not None}])
    expect_error(bench.report(RECORD), "round_refused")
    expect(bench.service.sent, [], "reports")
    expect_outcome(bench.report(RECORD, accept_kept_reports=True), "sent")


def _check_shuffled(bench: Bench) -> None:
    bench.service.reset([{**ROUND, "hpke_public_key": "AAAA"}])
    expect_error(bench.report(RECORD), "round_refused")
    expect(bench.service.sent, [], "reports")


def _check_key(bench: Bench, *, first: bool) -> None:
    bench.service.reset([ROUND])
    refusal = create_problem(401, "unauthenticated")
    if first:
        bench.service.listing = refusal
    else:
        bench.service.replies = [refusal]
    answer = bench.report(RECORD)
    expect_error(answer, "unauthenticated")
    expect(answer.get("pending"), [] if first else ["rnd_1"], "pending rounds")


def _check_silence(bench: Bench) -> None:
    bench.service.reset([ROUND])
    expect_error(bench.report(RECORD, url="http://127.0.0.1:9"), "unreachable")
    bench.service.replies = [Answer(0)]
    answer = bench.report(RECORD)
    expect_error(answer, "unreachable")
    expect(answer.get("pending"), ["rnd_1"], "pending rounds")
    expect(expect_outcome(bench.report(RECORD), "sent")["pending"], [], "pending rounds")
    expect(len({each.body for each in bench.service.sent}), 1, "number of different requests")


def _check_redirect(bench: Bench) -> None:
    bench.service.reset([ROUND])
    bench.service.replies = [Answer(307, b"", {"Location": "/v1/rounds/rnd_9/reports"})]
    expect_error(bench.report(RECORD), "unexpected_response")
    expect([each.round_id for each in bench.service.sent], ["rnd_1"], "requests")


def _check_length(bench: Bench) -> None:
    bench.service.reset([ROUND])
    bench.service.listing = Answer(200, b" " * _HUGE + b"{}", {"Content-Type": "application/json"})
    expect_error(bench.report(RECORD), "unexpected_response")


def _check_page(bench: Bench) -> None:
    bench.service.reset([ROUND])
    bench.service.listing = Answer(200, b"<!doctype html>", {"Content-Type": "text/html"})
    expect_error(bench.report(RECORD), "unexpected_response")


def _check_clock(bench: Bench, seconds: int) -> None:
    """Check that no date of the service matters: the service seems to live at another time."""
    bench.service.reset([ROUND])
    date = formatdate(time.time() + seconds, usegmt=True)
    bench.service.replies = [create_problem(503, "unavailable", **{"Retry-After": date, "Expires": date})]
    began = time.monotonic()
    expect_outcome(bench.report(RECORD, retry_seconds=20), "sent")
    if time.monotonic() - began > 15:
        raise Difference("the device waited for a date of the service")


def _check_retry(bench: Bench, headers: dict[str, str], least_seconds: float) -> None:
    bench.service.reset([ROUND])
    bench.service.replies = [create_problem(503, "unavailable", **headers)]
    began = time.monotonic()
    expect_outcome(bench.report(RECORD, retry_seconds=30), "sent")
    if time.monotonic() - began < least_seconds:
        raise Difference(f"the device waited less than the {least_seconds:g} s of Retry-After")
    expect(len(bench.service.sent), 2, "number of requests")
    expect(len({each.body for each in bench.service.sent}), 1, "number of different requests")
