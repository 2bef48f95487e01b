"""Cases of the store: written before a report is sent, shared by processes, and refused if it is damaged."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from audit.conformance.bench import Bench, Case, Difference, expect, expect_error, expect_outcome
from audit.conformance.input_cases import RECORD, ROUND
from audit.conformance.scripted_service import Sent

N_PROCESSES = 3
_WAIT_SECONDS = 60.0


def create_store_cases() -> Iterator[Case]:
    """Yield the cases of the store."""
    for name, damage in DAMAGES.items():
        yield Case("store", f"a damaged store: {name}", partial(_check_damage, damage=damage))
    for name, path in BAD_PATHS.items():
        yield Case("store", f"the path of the store {name}", partial(_check_path, path=path))
    checks: dict[str, Callable[[Bench], None]] = {
        "a store of another dataset is not this memory": _check_dataset,
        "the disk is full": _check_disk,
        "the disk is full when the answer comes": _check_late_disk,
        "the report is in the store before it is sent": _check_order,
        "a report survives the end of the process": _check_kill,
        f"{N_PROCESSES} processes with one store answer once": _check_processes,
    }
    for name, check in checks.items():
        yield Case("store", name, check)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda whole: whole[:-2],
    "half": lambda whole: whole[: len(whole) // 2],
    "one digit differs": lambda whole: _change_digit(whole),
    "other text": lambda _: b"{}",
    "not text": lambda whole: b"\xff\xfe" + whole,
}


BAD_PATHS = {
    "is empty": "",
    "is the root": "/",
    "has a zero character": "a\0b",
    "is below a file": "file/device.json",
    "is below two that are missing, below a file": "file/a/b/device.json",
    "is where no folder can be": "/proc/sfumato/device.json",
}


def _change_digit(whole: bytes) -> bytes:
    """Return the bytes with another digit in the middle of the longest run of digits, such as a draw."""
    start, length = 0, 0
    at = 0
    while at < len(whole):
        end = at
        while end < len(whole) and whole[end : end + 1].isdigit():
            end += 1
        if end - at > length:
            start, length = at, end - at
        at = end + 1
    place = start + length // 2
    return whole[:place] + (b"3" if whole[place : place + 1] != b"3" else b"4") + whole[place + 1 :]


def _check_damage(bench: Bench, damage: Callable[[bytes], bytes]) -> None:
    bench.service.reset([ROUND])
    expect_outcome(bench.report(RECORD), "sent")
    whole = bench.store.read_bytes()
    damaged = damage(whole)
    if damaged == whole:
        raise Difference("the store has no digits: the kit cannot damage it")
    bench.store.write_bytes(damaged)
    expect_error(bench.report(RECORD), "store_unusable")
    expect(len(bench.service.sent), 1, "number of requests")
    expect(bench.store.read_bytes(), damaged, "damaged store afterwards")


def _check_dataset(bench: Bench) -> None:
    bench.service.reset([ROUND])
    first = expect_outcome(bench.report(RECORD), "sent")
    other = expect_outcome(bench.report(RECORD, dataset_id="ds_2"), "sent")
    again = expect_outcome(bench.report(RECORD), "already_answered")
    expect((other["spent"], again["spent"]), (first["spent"], first["spent"]), "spent epsilon of each dataset")


def _check_path(bench: Bench, path: str) -> None:
    bench.service.reset([ROUND])
    (bench.folder / "file").write_text("")
    store = str(bench.folder / path) if path.startswith("file") else path
    expect_error(bench.report(RECORD, store=store), "store_unusable")
    expect(bench.service.sent, [], "reports")


def _check_disk(bench: Bench) -> None:
    bench.service.reset([ROUND])
    with bench.another(disk_full=True) as limited:
        expect_error(limited.call("report", **bench.arguments(RECORD)), "store_unusable")
    expect(bench.service.sent, [], "reports")
    expect_outcome(bench.report(RECORD), "sent")


def _check_late_disk(bench: Bench) -> None:
    bench.service.reset([ROUND])
    with bench.another() as limited:
        limited.call("describe")
        bench.service.hold = lambda _: limited.fill_disk()
        expect_error(limited.call("report", **bench.arguments(RECORD)), "store_unusable")
    bench.service.hold = None
    expect_outcome(bench.report(RECORD), "sent")  # it is still pending
    expect(len({each.body for each in bench.service.sent}), 1, "number of different requests")


def _check_order(bench: Bench) -> None:
    bench.service.reset([ROUND])
    copied = bench.folder / "copied.json"

    def copy(_: Sent) -> None:
        if not copied.exists():
            shutil.copy(bench.store, copied)

    bench.service.hold = copy
    expect_outcome(bench.report(RECORD), "sent")
    expect_outcome(bench.report(RECORD, store=str(copied)), "sent")  # it was pending
    expect(len({each.body for each in bench.service.sent}), 1, "number of different requests")


def _check_kill(bench: Bench) -> None:
    bench.service.reset([ROUND])
    arrived, released = threading.Event(), threading.Event()

    def hold(_: Sent) -> None:
        arrived.set()
        released.wait(_WAIT_SECONDS)

    bench.service.hold = hold
    with bench.another() as victim:
        victim.send("report", **bench.arguments(RECORD))
        if not arrived.wait(_WAIT_SECONDS):
            raise Difference("no report was sent")
        victim.kill()
    released.set()
    bench.service.hold = None
    expect_outcome(bench.report([0.1, 0.9]), "sent")
    expect(len({each.body for each in bench.service.sent}), 1, "number of different requests")


def _check_processes(bench: Bench) -> None:
    bench.service.reset([ROUND])
    with ExitStack() as stack:
        others = [stack.enter_context(bench.another()) for _ in range(N_PROCESSES)]
        for each in others:
            each.call("describe")
        numbers = [each.send("report", **bench.arguments(RECORD)) for each in others]
        answers = [each.receive(number) for each, number in zip(others, numbers, strict=True)]
    outcomes = [answer.get("result", answer).get("outcome") for answer in answers]
    if not set(outcomes) <= {"sent", "already_answered"}:
        raise Difference(f"outcomes {outcomes}: {answers}")
    expect(len({each.body for each in bench.service.sent}), 1, "number of different reports")
