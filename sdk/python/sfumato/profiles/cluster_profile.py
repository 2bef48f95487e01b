"""Profile of released clusters: shares of the values of attributes in each cluster, and what distinguishes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, log10
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_names import check_names, cluster_title
from sfumato.model.tables import html_table, new_frame
from sfumato.names import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

Status = Literal["described", "no_association_found"]
DIGITS, ERROR_DIGITS, LIFT_DIGITS = 6, 2, 4  # significant digits of sizes, of errors and of lifts in a document
NOISY = 0.1  # error of a share above which its bar is not drawn
_ROW_INCHES, _HEAD_INCHES, _WIDTH_INCHES = 0.42, 0.62, 7.0


@dataclass(frozen=True, eq=False)
class AttributeProfile:
    """The profile of one attribute.

    Attributes
    ----------
    name : str
    status : {'described', 'no_association_found'}
        Whether the values are released, or the attribute is not associated with the clusters beyond noise.
    association : float
        Half of the L1 distance between the joint shares of clusters and values and those without association, in
        [0, 1]: the share of people that would have to change their value.
    association_error : float
        Standard error of its noise.
    values : tuple of str
        Categories of the attribute. Empty unless it is described.
    counts : ndarray of shape (n_clusters, n_values), int64, or None
        Noisy numbers of records. They may be negative.
    shares : ndarray of the same shape, float64, or None
        Shares within each cluster. Each row has the sum 1.
    share_errors : ndarray of the same shape, float64, or None
        Standard error of the noise of each share.
    """

    name: str
    status: Status
    association: float
    association_error: float
    values: tuple[str, ...] = ()
    counts: NDArray[np.int64] | None = None
    shares: NDArray[np.float64] | None = None
    share_errors: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Distinguishing:
    """A value with a share in a cluster that differs from its share in all other clusters.

    Attributes
    ----------
    cluster : int
    attribute, value : str
    share, rest : float
        Share in the cluster, and in all others.
    share_error : float
        Standard error of the noise of the share.
    difference : float
        `share - rest`.
    difference_interval : tuple of two floats
        Interval of the difference for people like these. About 5 % of the listed intervals may miss.
    lift : float
        `share / rest`, with shares of at least 1e-4.
    interval : tuple of two floats
        Interval of the lift.
    """

    cluster: int
    attribute: str
    value: str
    share: float
    share_error: float
    rest: float
    difference: float
    difference_interval: tuple[float, float]
    lift: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        """Return a line such as `plan = pro 42 % ± 2, elsewhere 11 %, 3.8 times`."""
        return f"{self.attribute} = {self.value} {self.measured()}"

    def measured(self) -> str:
        """Return the shares alone, such as `42 % ± 2, elsewhere 11 %, 3.8 times`."""
        share, error = 100 * self.share, 100 * self.share_error
        decimals = 0 if error >= 0.95 else 1
        times = show_times(self.lift) if self.rest > 0 else "nowhere else"
        shown = f"{share:.{decimals}f} % ± {error:.{decimals}f}"
        return f"{shown}, elsewhere {100 * self.rest:.{decimals}f} %, {times}"


def show_times(lift: float) -> str:
    """Return a factor with one decimal, or with two significant digits below 1, such as `0.03 times`."""
    if lift >= 0.95:
        return f"{lift:.1f} times"
    return f"{lift:.2g} times" if lift >= 0.001 else "less than 0.001 times"


@dataclass(frozen=True, eq=False, repr=False)
class ClusterProfile:
    """The profile of released clusters.

    Attributes
    ----------
    of : str
        Id of the job that released the clusters.
    sizes, size_errors : ndarray of shape (n_clusters,), float64
        Share of the records in each cluster by the profile's own counts, and its standard error.
    attributes : tuple of AttributeProfile
    distinctions : tuple of Distinguishing
        Values that distinguish a cluster, the clearest first; see `distinguishing`.
    too_small : tuple of int
        Clusters with too few records to describe.
    false_discovery_rate : float
        About this share of the distinctions may be chance.
    n_tested : int
        Number of tested values.
    names : tuple of str
        Names that an analyst gave to the clusters; see `ClusterModel`.
    warnings : tuple of str
    diagnostics : mapping
    privacy : mapping of str to {'dp', 'post_processed', 'public'}
    """

    of: str
    sizes: NDArray[np.float64]
    size_errors: NDArray[np.float64]
    attributes: tuple[AttributeProfile, ...]
    distinctions: tuple[Distinguishing, ...]
    too_small: tuple[int, ...]
    false_discovery_rate: float
    n_tested: int
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""
        return len(self.sizes)

    def distinguishing(self, cluster: int | None = None) -> tuple[Distinguishing, ...]:
        """Return the values that distinguish a cluster, or all clusters, the clearest first.

        About 1 in 20 of the listed values may be chance.

        Raises
        ------
        InvalidSpec
            There is no such cluster.
        """
        if cluster is None:
            return self.distinctions
        if not 0 <= cluster < self.n_clusters:
            raise InvalidSpec(f"there is no cluster {cluster}: the clusters are 0 to {self.n_clusters - 1}")
        return tuple(each for each in self.distinctions if each.cluster == cluster)

    def attribute(self, name: str) -> AttributeProfile:
        """Return the profile of an attribute. Raise InvalidSpec if the profile does not have it."""
        found = {each.name: each for each in self.attributes}
        if name not in found:
            raise InvalidSpec(f"this profile has no attribute {name!r}: use {nearest(name, found)!r}")
        return found[name]

    def table(self, attribute: str) -> "DataFrame":
        """Return shares and errors of an attribute as a DataFrame, one row per cluster. Needs `sfumato[pandas]`.

        The columns are the values, each with a column `value ±` of standard errors.

        Raises
        ------
        InvalidSpec
            The profile does not describe the attribute.
        """
        found = self.attribute(attribute)
        if found.shares is None or found.share_errors is None:
            raise InvalidSpec(f"{attribute} is not described: no association with the clusters was found")
        columns: dict[str, Any] = {"cluster": np.arange(self.n_clusters)}
        if self.names:
            columns["name"] = list(self.names)
        for place, value in enumerate(found.values):
            columns[value] = found.shares[:, place]
            columns[f"{value} ±"] = found.share_errors[:, place]
        return new_frame(columns).set_index("cluster")

    def plot(self, cluster: int | None = None, *, rows: int = 5) -> "Figure":
        """Plot cards of the clusters, or of one: bars of the first distinguishing values. Needs the extra `plot`.

        Parameters
        ----------
        cluster : int, optional
        rows : int
            Largest number of values in a card.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from matplotlib.figure import Figure

        shown = range(self.n_clusters) if cluster is None else [cluster]
        cards = [(c, self.distinguishing(c)[:rows]) for c in shown]
        heights = [_HEAD_INCHES + _ROW_INCHES * max(1, len(listed)) for _, listed in cards]
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 0.4), layout="constrained")
        axes = figure.subplots(len(cards), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, (c, listed) in zip(axes, cards, strict=True):
            _draw_card(ax, self, c, listed)
        rate = round(1 / self.false_discovery_rate)
        note = f"about 1 in {rate} of the listed values may be chance; grey: all other clusters"
        figure.supxlabel(note, fontsize=8)
        return figure

    def __repr__(self) -> str:
        described = sum(each.status == "described" for each in self.attributes)
        return (
            f"<ClusterProfile of {self.of}: {self.n_clusters} clusters, {described} of {len(self.attributes)} "
            f"attributes described, {len(self.distinctions)} distinguishing values>"
        )

    def _repr_html_(self) -> str:
        rows = {
            f"{cluster_title(self.names, c)}: {100 * size:.1f} %": "; ".join(map(str, self.distinguishing(c)[:5]))
            or "no distinguishing value"
            for c, size in enumerate(self.sizes.tolist())
        }
        return html_table(rows | {"note": "about 1 in 20 of the listed values may be chance"})

    def to_wire(self) -> dict[str, Any]:
        """Return the profile as plain JSON values.

        Errors have two significant digits, and shares one decimal more than the first digit of their error.
        """
        return {
            "type": "profile",
            "of": self.of,
            "n_clusters": self.n_clusters,
            "sizes": _significant(self.sizes.tolist()),
            "size_errors": _significant(self.size_errors.tolist()),
            "attributes": [_attribute_to_wire(each) for each in self.attributes],
            "distinguishing": [_distinction_to_wire(each) for each in self.distinctions],
            "too_small": list(self.too_small),
            "false_discovery_rate": self.false_discovery_rate,
            "n_tested": self.n_tested,
            "names": list(self.names),
            "warnings": list(self.warnings),
            "diagnostics": dict(self.diagnostics),
            "privacy": dict(self.privacy),
        }


def _significant(values: Sequence[float], digits: int = DIGITS) -> list[float]:
    """Return values with this number of significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def _as_precise(values: Sequence[float], errors: Sequence[float]) -> list[float]:
    """Return values with one decimal more than the first digit of their errors, so that rounding adds nothing."""
    places = [1 + ceil(-log10(error)) if error > 0 else DIGITS for error in errors]
    return [round(value, place) for value, place in zip(values, places, strict=True)]


def _attribute_to_wire(found: AttributeProfile) -> dict[str, Any]:
    wire = {
        "name": found.name,
        "status": found.status,
        "association": float(found.association),
        "association_error": float(found.association_error),
        "values": list(found.values),
        "counts": None if found.counts is None else found.counts.tolist(),
        "shares": None,
        "share_errors": None,
    }
    if found.shares is not None and found.share_errors is not None:
        errors = [_significant(row, ERROR_DIGITS) for row in found.share_errors.tolist()]
        wire["shares"] = [_as_precise(row, of) for row, of in zip(found.shares.tolist(), errors, strict=True)]
        wire["share_errors"] = errors
    return wire


def _distinction_to_wire(found: Distinguishing) -> dict[str, Any]:
    errors = _significant([found.share_error], ERROR_DIGITS)
    share, rest, difference = (_as_precise([each], errors)[0] for each in (found.share, found.rest, found.difference))
    return asdict(found) | {
        "share": share,
        "share_error": errors[0],
        "rest": rest,
        "difference": difference,
        "difference_interval": _as_precise(found.difference_interval, 2 * errors),
        "lift": _significant([found.lift], LIFT_DIGITS)[0],
        "interval": _significant(found.interval, LIFT_DIGITS),
    }


def profile_from_wire(wire: Mapping[str, Any]) -> ClusterProfile:
    """Return the profile that `ClusterProfile.to_wire` wrote. Raise InvalidSpec for another document."""
    try:
        found = ClusterProfile(
            of=str(wire["of"]),
            sizes=np.asarray(wire["sizes"], dtype=np.float64),
            size_errors=np.asarray(wire["size_errors"], dtype=np.float64),
            attributes=tuple(_attribute(each) for each in wire["attributes"]),
            distinctions=tuple(_distinction(each) for each in wire["distinguishing"]),
            too_small=tuple(wire["too_small"]),
            false_discovery_rate=float(wire["false_discovery_rate"]),
            n_tested=int(wire["n_tested"]),
            names=check_names(wire.get("names", ()), len(wire["sizes"])),
            warnings=tuple(wire.get("warnings", ())),
            diagnostics=wire.get("diagnostics", {}),
            privacy=wire.get("privacy", {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a profile of clusters") from error
    k = found.n_clusters
    tables = [(each, table) for each in found.attributes for table in (each.counts, each.shares, each.share_errors)]
    if any(table is not None and table.shape != (k, len(each.values)) for each, table in tables) or any(
        each.status not in get_args(Status) for each in found.attributes
    ):
        raise InvalidSpec("the parts of this profile are inconsistent")
    return found


def _attribute(wire: Mapping[str, Any]) -> AttributeProfile:
    counts, shares, errors = wire["counts"], wire["shares"], wire["share_errors"]
    return AttributeProfile(
        name=wire["name"],
        status=wire["status"],
        association=float(wire["association"]),
        association_error=float(wire["association_error"]),
        values=tuple(wire["values"]),
        counts=None if counts is None else np.asarray(counts, dtype=np.int64),
        shares=None if shares is None else np.asarray(shares, dtype=np.float64),
        share_errors=None if errors is None else np.asarray(errors, dtype=np.float64),
    )


def _distinction(wire: Mapping[str, Any]) -> Distinguishing:
    lower, upper = wire["interval"]
    least, most = wire["difference_interval"]
    plain = {name: wire[name] for name in Distinguishing.__slots__ if not name.endswith("interval")}
    return Distinguishing(**plain, interval=(lower, upper), difference_interval=(least, most))


def _draw_card(ax: Any, profile: ClusterProfile, c: int, listed: tuple[Distinguishing, ...]) -> None:
    """Draw the bars of a card. The bar of a share with a large error is left out."""
    from sfumato.plotting.drawing import FAINT_INK, INK
    from sfumato.plotting.shading import colour, to_xml_text

    size, error = 100 * float(profile.sizes[c]), 100 * float(profile.size_errors[c])
    title = to_xml_text(f"{cluster_title(profile.names, c)}: {size:.1f} ± {error:.1f} % of people")
    ax.set_title(title, loc="left", color=INK, fontsize=10, parse_math=False)
    ax.set_xlim(0, 1)
    ax.set_ylim(max(1, len(listed)) - 0.5, -0.5)
    ax.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"], fontsize=7)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    if not listed:
        text = "too few records to describe" if c in profile.too_small else "no distinguishing value"
        ax.set_yticks([])
        ax.text(0.01, 0, text, color=FAINT_INK, fontsize=8, va="center")
        return
    ax.set_yticks(range(len(listed)), [f"{each.attribute} = {each.value}" for each in listed], fontsize=8)
    for row, each in enumerate(listed):
        if each.share_error > NOISY:
            ax.text(0.01, row, "too noisy", color=FAINT_INK, fontsize=8, va="center")
            continue
        ax.barh(row - 0.14, each.share, height=0.3, color=colour(c)[1])
        ax.barh(row + 0.18, each.rest, height=0.16, color="#bbbbbb")
        ax.errorbar(each.share, row - 0.14, xerr=1.96 * each.share_error, color=INK, linewidth=1, capsize=2)
        times = show_times(each.lift) if each.rest > 0 else ""
        ax.text(min(each.share + 2.2 * each.share_error + 0.01, 0.86), row - 0.14, times, fontsize=7, va="center")
