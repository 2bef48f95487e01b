"""Results as Markdown: the ten sets' means, ARI by epsilon, and all four measures of every run."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from benchmarks.quality.data import RESAMPLED_SIZE, TEN
from benchmarks.quality.methods import METHODS
from benchmarks.quality.rows import MEASURES, Row, Summary

LEGEND = (
    "Mean ± standard deviation over seeds. K: `given` was told the number of clusters, `auto` found it, `tuned` saw "
    "the true labels and is no rival. `*`: resampled from a smaller set with jitter. `†`: no true labels; scored "
    "against the same method on exact counts. –: refused or not run."
)


def document(summaries: Sequence[Summary], found: Sequence[Row]) -> str:
    """The whole of results.md."""
    versions = ", ".join(f"`{version}`" for version in sorted({row.version for row in found}))
    parts = ["# Quality of clustering", LEGEND, f"{len(found):,} runs; software {versions or 'none'}."]
    if any(summary.set in TEN for summary in summaries):
        parts += ["## The ten sets", ten_sets(summaries).rstrip()]
    for (name, n), group in _by_set(summaries).items():
        parts += [f"## {name}{group[0].mark}, {n:,} reports", ari_table(group).rstrip()]
        parts += ["All measures:", full_table(group).rstrip()]
    return "\n\n".join(parts) + "\n"


def ten_sets(summaries: Iterable[Summary]) -> str:
    """Mean over the ten sets at 150,000 reports: a row a method, K given beside K automatic; may be empty.

    Of a method, an epsilon and a way, a mean stands only where all ten sets were run; a run
    that was refused counts as ARI 0.
    """
    chosen = [s for s in summaries if s.set in TEN and s.n == RESAMPLED_SIZE]
    epsilons = _epsilons(chosen)
    if not epsilons:
        return ""
    heads = ["method", *(f"given, ε={e:g}" for e in epsilons), *(f"auto, ε={e:g}" for e in epsilons)]
    lines = []
    for method in _methods(chosen):
        of = [s for s in chosen if s.method == method]
        if any(s.k == "tuned" for s in of):
            mean = _mean_of_ten([s for s in of if s.k == "tuned"])
            lines.append([f"{method} (tuned)", *[mean] * len(epsilons), *["–"] * len(epsilons)])
            continue
        cells = [
            _mean_of_ten([s for s in of if s.k == way and s.epsilon == epsilon])
            for way in ("given", "auto")
            for epsilon in epsilons
        ]
        lines.append([method, *cells])
    best = _mean_of_ten(_best_tuned(chosen))
    lines.append(["best of the tuned, set by set", *[best] * len(epsilons), *["–"] * len(epsilons)])
    return _table(heads, [line for line in lines if set(line[1:]) != {"–"}])


def ari_table(group: Sequence[Summary], ways: Sequence[str] = ("given", "auto", "tuned")) -> str:
    """ARI of one set: a row a method and way, a column an epsilon."""
    epsilons = _epsilons(group)
    lines = []
    for method in _methods(group):
        for way in ways:
            of = {s.epsilon: s for s in group if s.method == method and s.k == way}
            if of:
                lines.append([method, way, *(_cell(of.get(epsilon, of.get(None)), "ari") for epsilon in epsilons)])
    return _table(["method", "K", *(f"ε={epsilon:g}" for epsilon in epsilons)], lines)


def full_table(group: Sequence[Summary]) -> str:
    """All measures of one set: a row a method, way and epsilon."""
    heads = ["method", "K", "ε", "ARI", "accuracy", "purity", "FMI", "clusters", "seconds", "seeds"]
    lines = [
        [
            s.method,
            s.k,
            "" if s.epsilon is None else f"{s.epsilon:g}",
            *(_cell(s, measure) for measure in MEASURES),
            f"{s.n_clusters:.1f}",
            f"{s.seconds:.2f}",
            f"{s.runs}" + (f", {s.refused} refused" if s.refused else ""),
        ]
        for s in sorted(group, key=_order)
    ]
    return _table(heads, lines)


def set_overview(summaries: Iterable[Summary], epsilon: float, way: str) -> str:
    """Mean ARI at one epsilon: a row a set, a column a method."""
    chosen = [s for s in summaries if s.epsilon in (epsilon, None) and s.k in (way, "tuned")]
    methods = _methods(chosen)
    lines = []
    for (name, n), group in _by_set(chosen).items():
        of = {s.method: s for s in group}
        means = [of[method].ari if method in of else None for method in methods]
        cells = ["–" if mean is None else short(mean) for mean in means]
        lines.append([f"{name}{group[0].mark}", f"{n:,}", *cells])
    return _table(["set", "reports", *methods], lines)


def _mean_of_ten(of: Sequence[Summary]) -> str:
    return short(fmean(s.ari or 0.0 for s in of)) if {s.set for s in of} == set(TEN) else "–"


def _best_tuned(summaries: Iterable[Summary]) -> list[Summary]:
    """Of each set, the ceiling that reached most."""
    best: dict[str, Summary] = {}
    for summary in summaries:
        if summary.k == "tuned" and (summary.set not in best or (summary.ari or 0.0) > (best[summary.set].ari or 0.0)):
            best[summary.set] = summary
    return list(best.values())


def _cell(summary: Summary | None, measure: str) -> str:
    if summary is None or (mean := getattr(summary, measure)) is None:
        return "–"
    return f"{short(mean)} ± {short(getattr(summary, measure + '_sd'))}"


def short(value: float) -> str:
    """Two decimals, and no minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _by_set(summaries: Iterable[Summary]) -> dict[tuple[str, int], list[Summary]]:
    groups: dict[tuple[str, int], list[Summary]] = {}
    for summary in summaries:
        groups.setdefault((summary.set, summary.n), []).append(summary)
    return groups


def _methods(summaries: Iterable[Summary]) -> list[str]:
    """Names that occur, in the table's order."""
    present = {summary.method for summary in summaries}
    return [name for name in METHODS if name in present]


def _epsilons(summaries: Iterable[Summary]) -> list[float]:
    return sorted({s.epsilon for s in summaries if s.epsilon is not None})


def _order(summary: Summary) -> tuple[int, str, float]:
    return list(METHODS).index(summary.method), summary.k, summary.epsilon or 0.0


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    rule = ["---" if place == 0 else "---:" for place in range(len(heads))]
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
