"""The central results as Markdown: NICV over k-means', what is gained over the uniform grid, and the rest."""

from collections.abc import Iterable, Sequence

from benchmarks.quality.central_methods import DELTA, OURS, PAPERS, PEER, WITH_DELTA
from benchmarks.quality.central_rows import CentralRow, CentralSummary

LEGEND = (
    "Means over seeds; K is given; bounds are the range of a set widened by 2 % a side. NICV is a ratio over the best "
    "non-private k-means; q = N ε / K. RCP is what a method takes off the NICV of the uniform grid (paper 003). "
    f"All guarantees are pure ε but that of `{WITH_DELTA}`, whose δ is {DELTA:g}. "
    "–: refused or not run."
)
MOST = 1.05  # times the best paper's method, wherever q is at least LEAST_Q
LEAST_Q = 30.0
RCP_SETS = ("s1", "s3", "a1", "a3", "unbalance", "birch1", "check_ins")


def document(summaries: Sequence[CentralSummary], found: Sequence[CentralRow]) -> str:
    """The whole of central.md."""
    parts = ["# Centroids of records", LEGEND, said_of(found)]
    for title, body in (
        ("NICV over k-means'", nicv_tables(summaries)),
        ("What is gained over the uniform grid", rcp_table(summaries)),
        ("Against the best of the papers' methods", judged(summaries)),
        ("Everything", full_table(summaries)),
    ):
        if body:
            parts += [f"## {title}", body.rstrip()]
    return "\n\n".join(parts) + "\n"


def said_of(found: Sequence[CentralRow]) -> str:
    """How many runs there are, and which software made them."""
    versions = ", ".join(f"`{version}`" for version in sorted({row.version for row in found}))
    seeds = len({row.seed for row in found})
    return f"{len(found):,} runs, up to {seeds} seed{'s' * (seeds != 1)}; software {versions or 'none'}.\n"


def nicv_tables(summaries: Sequence[CentralSummary]) -> str:
    """A table for each epsilon: a row a set, a column a method, `one mean` last."""
    present = {s.method for s in summaries}
    methods = [name for name in (OURS, WITH_DELTA, *PAPERS, PEER, "one mean") if name in present]
    parts = []
    for epsilon in _epsilons(summaries):
        lines = []
        for name, group in _by_set(summaries).items():
            first = group[0]
            cells = [_ratio(_of(group, method, epsilon)) for method in methods]
            if set(cells[:-1]) != {"–"}:
                lines.append([name, f"{first.n_features}", f"{first.clusters}", f"{_q(first, epsilon):.0f}", *cells])
        parts.append(f"**ε = {epsilon:g}**\n\n" + _table(["set", "features", "K", "q", *methods], lines))
    return "\n".join(parts)


def rcp_table(summaries: Sequence[CentralSummary]) -> str:
    """RCP of ours over the uniform grid, percent: a row a set, a column an epsilon."""
    epsilons = _epsilons(summaries)
    lines = []
    for name, group in _by_set(summaries).items():
        found = [_of(group, OURS, epsilon) for epsilon in epsilons]
        if name in RCP_SETS and any(s is not None and s.rcp is not None for s in found):
            lines.append([name, *("–" if s is None or s.rcp is None else f"{100 * s.rcp:.0f} %" for s in found)])
    return _table(["set", *(f"ε={epsilon:g}" for epsilon in epsilons)], lines)


def judged(summaries: Sequence[CentralSummary]) -> str:
    """NICV of ours over that of the best of the papers' methods, wherever q is at least 30."""
    lines = []
    for name, group in _by_set(summaries).items():
        for epsilon in _epsilons(summaries):
            ours = _of(group, OURS, epsilon)
            ratios = {
                method: s.nicv_ratio
                for method in PAPERS
                if (s := _of(group, method, epsilon)) is not None and s.nicv_ratio is not None
            }
            if ours is None or ours.nicv_ratio is None or not ratios or _q(ours, epsilon) < LEAST_Q:
                continue
            best = min(ratios, key=lambda method: ratios[method])
            over = ours.nicv_ratio / ratios[best]
            mark = "" if over <= MOST else " ✗"
            cells = [f"{ours.nicv_ratio:.3f}", f"{ratios[best]:.3f}", best, f"{over:.2f}{mark}"]
            lines.append([name, f"{epsilon:g}", f"{_q(ours, epsilon):.0f}", *cells])
    return _table(["set", "ε", "q", OURS, "best of the papers'", "which", "over it"], lines)


def full_table(summaries: Sequence[CentralSummary]) -> str:
    """Every measure of everything."""
    heads = ["set", "ε", "method", "NICV ratio", "RCP", "F-measure", "ARI", "silhouette", "Davies-Bouldin",
             "Calinski-Harabasz", "SSE", "seconds", "seeds"]  # fmt: skip
    lines = [
        [
            s.set,
            "" if s.epsilon is None else f"{s.epsilon:g}",
            s.method,
            _ratio(s),
            *(_plain(value, 3) for value in (s.rcp, s.f_measure, s.ari, s.silhouette, s.davies_bouldin)),
            _plain(s.calinski_harabasz, 0),
            _plain(s.sse, 3),
            _plain(s.seconds, 2),
            f"{s.runs}" + (f", {s.refused} refused" if s.refused else ""),
        ]
        for s in summaries
    ]
    return _table(heads, lines)


def _q(summary: CentralSummary, epsilon: float) -> float:
    return summary.n * epsilon / summary.clusters


def _ratio(summary: CentralSummary | None) -> str:
    if summary is None or summary.nicv_ratio is None:
        return "–"
    return f"{summary.nicv_ratio:.3f}" if summary.nicv_ratio < 2 else f"{summary.nicv_ratio:.3g}"


def _of(group: Iterable[CentralSummary], method: str, epsilon: float) -> CentralSummary | None:
    return next((s for s in group if s.method == method and s.epsilon in (epsilon, None)), None)


def _by_set(summaries: Iterable[CentralSummary]) -> dict[str, list[CentralSummary]]:
    groups: dict[str, list[CentralSummary]] = {}
    for summary in summaries:
        groups.setdefault(summary.set, []).append(summary)
    return groups


def _epsilons(summaries: Iterable[CentralSummary]) -> list[float]:
    return sorted({s.epsilon for s in summaries if s.epsilon is not None}, reverse=True)


def _plain(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    texts = ("method", "set", "which")
    rule = ["---" if head in texts else "---:" for head in heads]
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
