"""A channel without information: every device sends what a device with symbol 0 sends."""

from typing import Any

import numpy as np
import pytest

from sfumato.mechanisms.base import Mechanism


def blinded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blind all mechanisms; the list fills with those that are used.

    What a method makes of two data sets is then the same, unless something of a record
    reaches it by another way than a perturbed symbol.
    """
    used: list[Any] = []
    perturb_many = Mechanism.perturb_many

    def send_nothing(mechanism, symbols, entropy):
        used.append(mechanism)
        return perturb_many(mechanism, np.zeros_like(symbols), entropy)

    monkeypatch.setattr(Mechanism, "perturb_many", send_nothing)
    return used
