"""Draw docs/images/accounting.svg, the cost of equal jobs under both kinds of accounting.

`python -m tools.accounting_picture` writes the file. All figures follow from `sfumato.privacy.accountant`.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from sfumato.privacy.accountant import Cost, certified_epsilon, charge_mu2, forecast_budget
from sfumato.privacy.accounting import NANO, parse_delta, parse_epsilon

PATH = Path(__file__).parents[1] / "docs" / "images" / "accounting.svg"
GRANT = parse_epsilon(2), parse_delta(1e-6)
JOB = parse_epsilon(0.2), parse_delta(1e-8)
MOST_JOBS = 120


def compute_curves() -> dict[str, list[float]]:
    """Return the certified epsilon after 0, 1, ... jobs by kind of accounting."""
    mu2 = charge_mu2(*JOB)
    charges = [Cost(n * JOB[0], n * JOB[1], n * mu2) for n in range(MOST_JOBS + 1)]
    return {
        kind: [(certified_epsilon(kind, charged, GRANT[1]) or 0) / NANO for charged in charges]
        for kind in ("additive", "gaussian")
    }


def draw(path: Path = PATH) -> None:
    """Draw the picture."""
    curves, found = compute_curves(), forecast_budget(*GRANT, *JOB)
    mpl.rcParams["svg.hashsalt"] = "sfumato"  # the same ids in every run
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    granted = GRANT[0] / NANO
    axes.axhline(granted, color="#999999", linewidth=1)
    axes.text(24, granted + 0.06, "granted: ε = 2 at δ = 1e-6", color="#555555", fontsize=9)
    for kind, name, colour, n in (
        ("additive", "additive", "#b3541e", found.additive),
        ("gaussian", "Gaussian", "#2b6a8f", found.gaussian),
    ):
        axes.plot(range(MOST_JOBS + 1), curves[kind], color=colour, label=f"{name}: {n} jobs")
        axes.plot([n], [granted], "o", color=colour, markersize=6)
    axes.set(xlabel="jobs of ε = .2, δ = 1e-8", ylabel="ε of all jobs together", xlim=(0, MOST_JOBS), ylim=(0, 4))
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Title": "Cost of equal jobs"})


if __name__ == "__main__":
    draw()
