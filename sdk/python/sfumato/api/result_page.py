"""A result as one HTML page without scripts and without external resources, to send to other people.

The page uses the released result alone, so it costs no privacy budget. Equal results give equal bytes.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from math import isfinite
from typing import Any, Protocol

import numpy as np

from sfumato.model.cluster_model import ClusterModel
from sfumato.model.cluster_names import cluster_title
from sfumato.model.geography import shown_values
from sfumato.plotting.figures import format_share
from sfumato.plotting.shading import colour
from sfumato.profiles.cluster_profile import ClusterProfile

SHOWN_CLUSTERS, SHOWN_FEATURES, SHOWN_VALUES = 200, 8, 10  # rows, columns, and values of a card

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem;font-size:.9rem}caption{text-align:left;color:#555}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%;height:auto}
.box{border-left:.3rem solid #777;padding:.1rem 1rem;background:#f5f5f5}.wide{overflow-x:auto}
.bar{display:inline-block;height:.7rem;vertical-align:middle}
@media print{body{margin:0;max-width:none}section{break-inside:avoid}}
"""


class PublishedResult(Protocol):
    """The released result of a job; see `sfumato.api.resources.Result`."""

    @property
    def job_id(self) -> str: ...
    @property
    def algorithm(self) -> Mapping[str, Any]: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def model(self) -> ClusterModel: ...
    @property
    def profile(self) -> ClusterProfile | None: ...
    @property
    def odometer(self) -> Sequence[Any]: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def software_version(self) -> str: ...


def html_page(result: PublishedResult, picture: str, title: str = "") -> str:
    """Return a result as an HTML document in one file.

    Parameters
    ----------
    result : Result
    picture : str
        Its plot as an SVG document; see `sfumato.plotting.figures.svg`.
    title : str
        Heading. The default names the number of clusters.
    """
    model = result.model
    n = model.n_clusters
    heading = escape(title or ("1 cluster" if n == 1 else f"{n} clusters"))
    image = b64encode(picture.encode()).decode()
    parts = [
        f"<h1>{heading}</h1>",
        _summary(result),
        f'<p><img alt="Plot of the clusters. The table has the numbers." src="data:image/svg+xml;base64,{image}"></p>',
        _section("Clusters", _clusters(model)),
        _features(model),
        "" if result.profile is None else _cards(result.profile),
        _section("Privacy", _privacy(result)),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of escaped cells. The cells after the first are numbers unless they have a letter or a tag."""

    def cell(text: str, place: int) -> str:
        is_number = place > 0 and not any(letter.isalpha() for letter in text)
        return f'<td class="n">{text}</td>' if is_number else f"<td>{text}</td>"

    lines = ("<tr>" + "".join(cell(text, place) for place, text in enumerate(row)) + "</tr>" for row in rows)
    names = "".join(f'<th scope="col">{text}</th>' for text in head)
    return (
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _summary(result: PublishedResult) -> str:
    model = result.model
    lines = [f"<strong>{model.verdict.value.capitalize()}.</strong> {escape(model.verdict_reason)}"]
    if model.expected_agreement is not None:
        lines.append(" ".join((*model.further_figures, "The clusters may still differ from the true groups.")))
    if model.outside_share is not None:
        outside = format_share(model.outside_share, model.outside_share_error or 0.0)
        lines.append(f"Outside of the bounds: {outside} of the people. The shares below are of those inside.")
    lines += [escape(text) for text in (*model.warnings, *(result.profile.warnings if result.profile else ()))]
    return '<div class="box">' + "".join(f"<p>{line}</p>" for line in lines) + "</div>"


def _clusters(model: ClusterModel) -> str:
    places = _shown_features(model)
    head = ["Cluster", "Share of people", *(_feature(model, place) for place in places)]
    rows = []
    for cluster in range(min(model.n_clusters, SHOWN_CLUSTERS)):
        swatch = f'<span class="bar" style="width:.7rem;background:{colour(cluster)[1]}"></span>'
        title = cluster_title(model.names, cluster).removeprefix("cluster ")
        centre = (
            []
            if model.centroids is None
            else [
                _measured(value, _error(model, cluster, place))
                for place, value in zip(places, _centre(model, cluster, places), strict=True)
            ]
        )
        share = format_share(float(model.sizes[cluster]), float(model.size_errors[cluster]))
        rows.append([f"{swatch} {escape(title)}", share, *centre])
    caption = "± is one standard error of the noise."
    if model.n_clusters > SHOWN_CLUSTERS:
        caption += f" The first {SHOWN_CLUSTERS} of {model.n_clusters} clusters are shown."
    if len(places) < len(model.features) and model.centroids is not None:
        caption += f" Of {len(model.features)} features, those in which the clusters differ most are shown."
    return _table(caption, head, rows)


def _shown_features(model: ClusterModel) -> list[int]:
    """Return the positions of the features of the table, in their order."""
    if model.centroids is None:
        return []
    shares = model.feature_shares
    order = np.arange(len(model.features)) if shares is None else np.argsort(-shares, kind="stable")
    return sorted(order[:SHOWN_FEATURES].tolist())


def _feature(model: ClusterModel, place: int) -> str:
    feature = model.features[place]
    return escape(f"{feature.name} ({feature.unit})" if feature.unit else feature.name)


def _centre(model: ClusterModel, cluster: int, places: Sequence[int]) -> list[float]:
    assert model.centroids is not None  # noqa: S101 - for the type checker
    return shown_values([model.features[place] for place in places], model.centroids[cluster, places].tolist())


def _error(model: ClusterModel, cluster: int, place: int) -> float:
    return float("nan") if model.centroid_errors is None else float(model.centroid_errors[cluster, place])


def _measured(value: float, error: float) -> str:
    return f"{value:.4g} ± {error:.2g}" if isfinite(error) else f"{value:.4g}"


def _features(model: ClusterModel) -> str:
    shares, check = model.column_shares, model.feature_check
    if len(shares) < 2:
        return ""
    titles = {each.name: _feature(model, place) for place, each in enumerate(model.features)}
    rows = []
    for name, share in sorted(shares.items(), key=lambda each: -each[1])[:SHOWN_FEATURES]:
        is_irrelevant = check is not None and name in check.irrelevant
        note = ["irrelevant"] if is_irrelevant else [] if check is None else [""]
        rows.append([titles.get(name, escape(name)), f"{100 * share:.0f} %", *note])
    caption = "How far each feature separates the centres of neighbouring clusters."
    head = ["Feature", "Share of the separation", *([] if check is None else ["Check"])]
    return _section("Features", _table(caption, head, rows))


def _cards(profile: ClusterProfile) -> str:
    cards = []
    for cluster in range(min(profile.n_clusters, SHOWN_CLUSTERS)):
        share = format_share(float(profile.sizes[cluster]), float(profile.size_errors[cluster]))
        title = escape(cluster_title(profile.names, cluster).capitalize())
        listed = profile.distinguishing(cluster)
        if not listed:
            is_small = cluster in profile.too_small
            text = "Too few records to describe." if is_small else "No value distinguishes this cluster."
            cards.append(f"<h3>{title}: {share}</h3><p>{text}</p>")
            continue
        bar = f'<span class="bar" style="width:{{:.0f}}%;max-width:100%;background:{colour(cluster)[1]}"></span>'
        rows = [
            [escape(f"{each.attribute} = {each.value}"), bar.format(100 * each.share), escape(each.measured())]
            for each in listed[:SHOWN_VALUES]
        ]
        more = f" The first {SHOWN_VALUES} of {len(listed)} are shown." if len(listed) > SHOWN_VALUES else ""
        cards.append(
            f"<h3>{title}: {share}</h3>" + _table(f"The clearest values first.{more}", ["Value", "", "Share"], rows)
        )
    rate = round(1 / profile.false_discovery_rate)
    note = f"<p>About 1 in {rate} of the listed values may be chance. ± is one standard error of the noise.</p>"
    return _section("What the clusters are", note + "\n".join(cards))


def _privacy(result: PublishedResult) -> str:
    delta = f", δ = {result.delta:g}" if result.delta else ""
    unit = "person in the records" if result.odometer else "installation"
    source = "noisy answers about the records" if result.odometer else "perturbed reports"
    kind = escape(str(result.algorithm["type"]))
    return (
        f"<p>Everything on this page was computed from {source}, with differential privacy. The job cost "
        f"ε = {result.epsilon:g}{delta} for each {unit}. Names were given by people.</p>"
        f"<p>Job {escape(result.job_id)}, algorithm {kind}, {result.created_at:%d %B %Y}, Sfumato "
        f"{escape(result.software_version)}.</p>"
    )
