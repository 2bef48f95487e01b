"""Rules for the ledger entries of the cycles of a series, for the service and for a verification."""

from dataclasses import dataclass, field

CYCLE_PREFIX = "ser_"  # begins the id of a cycle: the id of its series, a hyphen, and a number


@dataclass(slots=True)
class Cycles:
    """The open cycles of all series: their remaining amounts, and the rules of their entries.

    A cycle reserves exactly its own grant. At its end, the remaining amount is removed from the grants, so that no
    other cycle and no job can spend it.
    """

    left: dict[str, tuple[int, int]] = field(default_factory=dict)  # nano-epsilon and atto-delta by cycle

    def fault(self, kind: str, reference: str, reservation: str | None, amounts: tuple[int, int]) -> str:
        """Apply an entry. Return why it is invalid, or an empty string."""
        if kind == "expire" and self.left.pop(reference, (0, 0)) != amounts:
            return "a cycle expired another amount than it left"
        if kind == "grant" and reference.startswith(CYCLE_PREFIX):
            self.left[reference] = amounts
        if kind == "reserve" and reference.startswith(CYCLE_PREFIX) and self.left.get(reference) != amounts:
            return "a cycle reserved another amount than its grant"
        if kind == "charge" and reservation in self.left:
            before = self.left.pop(reservation)
            left = before[0] - amounts[0], before[1] - amounts[1]
            if any(left):
                self.left[reservation] = left
        return ""
