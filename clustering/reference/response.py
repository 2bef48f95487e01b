"""What the comparators' devices send: k-ary randomised response, by the integers a device uses."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.accounting import DRAW_SPAN
from sfumato.entropy import Entropy
from sfumato.mechanisms import design, perturb_many, support
from sfumato.mechanisms.grr import symbols_of
from sfumato.specs import GrrMechanism

_CHUNK_SYMBOLS = 1 << 21  # perturbed at once: 16 MB of words


@dataclass(frozen=True)
class Response:
    """Randomised response over k symbols, and the two numbers that undo it in the mean.

    Attributes
    ----------
    mechanism : GrrMechanism
        As the SDK designs it; its realised epsilon is `sfumato.mechanisms.epsilon_nano`.
    p, q : float
        The chance that the own symbol is sent, and any one other.
    """

    mechanism: GrrMechanism
    p: float
    q: float

    def send(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
        """The symbols n devices send for theirs: int64 of the same shape."""
        flat = symbols.ravel()
        sent = np.empty(flat.size, dtype=np.int64)
        for begin in range(0, flat.size, _CHUNK_SYMBOLS):
            part = slice(begin, begin + _CHUNK_SYMBOLS)
            sent[part] = symbols_of(perturb_many(self.mechanism, flat[part], entropy))
        return sent.reshape(symbols.shape)


def response(n_symbols: int, epsilon_nano: int, perturb: bool) -> Response:
    """Randomised response that costs at most `epsilon_nano`; where not `perturb`, one that always keeps.

    Raises
    ------
    InvalidSpec
        Fewer than two symbols, or more than a device can send.
    """
    mechanism = design("grr", n_symbols, epsilon_nano) if perturb else GrrMechanism(n_symbols, DRAW_SPAN)
    assert isinstance(mechanism, GrrMechanism)  # noqa: S101  # what this kind is; for mypy
    p, q = support(mechanism)
    return Response(mechanism, float(p), float(q))
