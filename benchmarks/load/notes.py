"""What is written down while the load runs: how long each kind of request took, and what went wrong."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

# 202 and the like, a device's answer that the round had closed before its report came, and limits.
ROUND_CLOSED, LIMITED = "409 round_closed", "429 rate_limited"
EXPECTED = frozenset({ROUND_CLOSED, LIMITED})


@dataclass
class Notes:
    """Times in seconds by kind of request, errors by code, reports acknowledged by round."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    at: list[tuple[float, float]] = field(default_factory=list)  # when each report was sent, and how long it took

    def forget(self) -> None:
        """Begin anew, but for what was acknowledged: every report is to be counted in the end."""
        self.seconds.clear()
        self.errors.clear()
        self.at.clear()

    @property
    def unexpected(self) -> dict[str, int]:
        """Errors other than limits."""
        return {code: n for code, n in self.errors.items() if code not in EXPECTED}


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds: the middle, and the tail."""

    n: int
    p50: float
    p90: float
    p99: float
    p999: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """Of a sample that is not empty, by nearest rank."""
        ordered = sorted(seconds)

        def rank(share: float) -> float:
            return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        return cls(len(ordered), rank(0.5), rank(0.9), rank(0.99), rank(0.999), 1000 * ordered[-1])
