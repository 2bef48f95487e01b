"""A channel without information: every device sends what a device with symbol 0 sends."""

from typing import Any

import numpy as np
import pytest


def blinded(monkeypatch: pytest.MonkeyPatch, *modules: str) -> list[Any]:
    """Blind these modules' `perturb_many`; the list fills with the mechanisms they use.

    What a method makes of two data sets is then the same, unless something of a record
    reaches it by another way than a perturbed symbol.
    """
    used: list[Any] = []

    def send_nothing(mechanism, symbols, entropy):
        used.append(mechanism)
        return mechanism.perturb_many(np.zeros_like(symbols), entropy)

    for module in modules:
        monkeypatch.setattr(f"{module}.perturb_many", send_nothing)
    return used
