"""Plot of the shares of clusters over the windows of a series, with their error bands and the events."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.plotting.drawing import FAINT_INK, INK
from sfumato.plotting.shading import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[Sequence[int], Sequence[float], Sequence[float]]  # windows, shares, standard errors


def plot_shares(
    curves: Mapping[str, Curve],
    events: Sequence[tuple[int, int, int]] = (),
    *,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Return a figure with one line per cluster and a band of two standard errors. Needs matplotlib.

    Parameters
    ----------
    curves : mapping of str to (windows, shares, errors)
        By title of the cluster. Shares are in [0, 1].
    events : sequence of (alarm, first, last)
        Window of the alarm, and the interval of the change, which is shaded.
    title : str
    ax : Axes, optional
        Where to draw; a new figure by default.

    Raises
    ------
    InvalidSpec
        There is no curve.
    """
    if not curves:
        raise InvalidSpec("this series has no clusters yet: wait until a window is done")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4), layout="constrained") if ax is None else ax.get_figure(root=True)
    assert figure is not None  # noqa: S101 - for the type checker: axes belong to a figure
    axes = figure.add_subplot() if ax is None else ax
    for number, (name, curve) in enumerate(curves.items()):
        windows, shares, errors = (np.asarray(each, dtype=np.float64) for each in curve)
        _, ink = colour(number)
        axes.fill_between(windows, *_band(100 * shares, 200 * errors), color=ink, alpha=0.2, linewidth=0)
        axes.plot(windows, 100 * shares, color=ink, marker="o", markersize=3, label=name)
    for alarm, first, last in events:
        axes.axvspan(first - 0.5, last + 0.5, color=FAINT_INK, alpha=0.12, linewidth=0)
        axes.axvline(alarm, color=INK, linestyle=":", linewidth=1)
    axes.set(xlabel="window", ylabel="share of people (%)", title=title)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small")
    return figure


def _band(middle: NDArray[np.float64], half: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 100.0)
