"""Sizes of the rounds of plans, from public facts: grids, trees, shares of the draws, parts of epsilon.

Parameters, the number of features and the expected reports enter; a `PlannedRound` for each round leaves.
Plans and forecasts both use `planned_rounds`, so a forecast shows the rounds that a plan opens.
"""

from sfumato.sizing.methods import planned_rounds

__all__ = ["planned_rounds"]
