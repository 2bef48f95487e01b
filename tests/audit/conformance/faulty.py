"""The Python device with one fault, which the kit must find: python -m tests.audit.conformance.faulty FAULT"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit.conformance import reference
from sfumato.device import checks
from sfumato.device.device import Device
from sfumato.device.shuffled import ShuffledDevice
from sfumato.device.store import FileStore

Call = dict[str, Any]
report = reference.report


def change_value(call: Call) -> Call:
    answer = reference.perturb(call)
    return answer | {"value": "00" * (len(answer["value"]) // 2)}


def draw_a_word_too_many() -> None:
    decide = Device._decide

    def decide_later(self: Device, *arguments: Any) -> Any:
        self._entropy.words(1)
        return decide(self, *arguments)

    Device._decide = decide_later  # type: ignore[method-assign]


def ignore_the_cap(call: Call) -> Call:
    return report(call | {"cap": "32"})


def forget(call: Call) -> Call:
    Path(call["store"]).unlink(missing_ok=True)
    return report(call)


def replace_a_damaged_store(call: Call) -> Call:
    answer = report(call)
    return forget(call) if answer.get("error") == "store_unusable" else answer


def send_before_storing() -> None:
    FileStore._save = lambda *_: None  # type: ignore[method-assign]


def take_the_features_of_the_round() -> None:
    checks._describe_difference = lambda *_: ""


def read_text_as_numbers(call: Call) -> Call:
    record = call["record"]
    if isinstance(record, list):
        call = call | {"record": [float(each) if isinstance(each, str) else each for each in record]}
    return report(call)


def keep_the_outer_layer() -> None:
    wrapped: dict[bytes, bytes] = {}
    wrap = ShuffledDevice._wrap

    def wrap_once(self: ShuffledDevice, memo: Any) -> bytes:
        return wrapped.setdefault(memo.value, wrap(self, memo))

    ShuffledDevice._wrap = wrap_once  # type: ignore[method-assign]


def trust_each_shuffler(call: Call) -> Call:
    import sfumato.device.shuffled as shuffled

    shuffled.verify_round = lambda *_: True
    return report(call)


def seal_for_another_round(call: Call) -> Call:
    return reference.seal_report(call | {"round": "00"})


# Name of the fault, by the text that selects the cases which must find it.
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "change_value": ("reports", change_value),
    "draw_a_word_too_many": ("devices a round is answered", draw_a_word_too_many),
    "ignore_the_cap": ("above the cap", ignore_the_cap),
    "forget": ("the end of the process", forget),
    "replace_a_damaged_store": ("damaged store: half", replace_a_damaged_store),
    "send_before_storing": ("before it is sent", send_before_storing),
    "take_the_features_of_the_round": ("a latitude is beyond the pole", take_the_features_of_the_round),
    "read_text_as_numbers": ("a value is text", read_text_as_numbers),
    "keep_the_outer_layer": ("another layer", keep_the_outer_layer),
    "trust_each_shuffler": ("another shuffler", trust_each_shuffler),
    "seal_for_another_round": ("sealed vector", seal_for_another_round),
}
REPLACED = {change_value: "perturb", seal_for_another_round: "seal"}


def plant(fault: str) -> None:
    change = FAULTS[fault][1]
    if change.__code__.co_argcount == 0:
        change()
    else:
        reference.CALLS[REPLACED.get(change, "report")] = change


if __name__ == "__main__":
    plant(sys.argv[1])
    reference.main()
