"""The centroids' results as Markdown: RMSE beside ARI, NICV, the paper's ablation, time, labels and regret."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from benchmarks.quality.centroid_methods import (
    ABLATION,
    FCM,
    K_MEANS,
    LAPLACE_FCM,
    METHODS,
    ONE_ROUND,
)
from benchmarks.quality.centroid_rows import CentroidRow, CentroidSummary
from sfumato.sizing import MAX_SHIFTED_FEATURES

OURS, GRID, AUTO = "phase_sketch", "grid_kmeans", "auto"
TEN_TIMES, WITHIN_BOUND = 10.0, 2.5
TIMED = ("blobs_4", 100_000)

LEGEND = (
    "Means over seeds; K is given. RMSE is of a centroid's coordinate, a share of its range, against the true means "
    "(blobs) or the non-private k-means; NICV is a ratio over the non-private k-means. `*`: resampled from a "
    "smaller set with jitter. `†`: scored against the labels of the non-private k-means. –: refused or not run."
)


def document(summaries: Sequence[CentroidSummary], found: Sequence[CentroidRow]) -> str:
    """The whole of centroids.md."""
    parts = ["# Centroids under local privacy", LEGEND, said_of(found)]
    for title, body in (
        ("Against what was promised", judged(summaries)),
        ("RMSE (ARI), clear blobs", rmse_tables(summaries)),
        ("NICV over k-means'", nicv_tables(summaries)),
        ("The paper's ablation", ablation_tables(summaries)),
        ("CPU time", time_table(summaries)),
        ("Labels", label_table(summaries)),
        ("What `auto` loses", regret_table(summaries)),
        ("Everything", full_table(summaries)),
    ):
        if body:
            parts += [f"## {title}", body.rstrip()]
    return "\n\n".join(parts) + "\n"


def said_of(found: Sequence[CentroidRow]) -> str:
    """How many runs there are, and which software made them."""
    versions = ", ".join(f"`{version}`" for version in sorted({row.version for row in found}))
    seeds = len({row.seed for row in found})
    return f"{len(found):,} runs, up to {seeds} seed{'s' * (seeds != 1)}; software {versions or 'none'}.\n"


def judged(summaries: Sequence[CentroidSummary]) -> str:
    """`phase_sketch` on blobs: RMSE and ARI, over the bound, and under Laplace noise with fuzzy c-means."""
    lines = []
    for ours in (*_of(summaries, ONE_ROUND), *_of(summaries, OURS)):
        if ours.bound is None or ours.rmse is None or ours.ari is None:
            continue
        over = ours.rmse / ours.bound
        same = [s for s in _of(summaries, LAPLACE_FCM) if (s.set, s.n, s.epsilon) == (ours.set, ours.n, ours.epsilon)]
        worse = same[0].rmse / ours.rmse if same and same[0].rmse is not None else None
        lines.append(
            [
                ours.method,
                f"{ours.n_features}",
                f"{ours.n:,}",
                f"{ours.epsilon:g}",
                f"{ours.ari:.3f}",
                f"{ours.rmse:.4f} ± {ours.rmse_sd or 0.0:.4f}",
                f"{ours.bound:.4f}",
                f"{over:.2f}{_unmet(over <= WITHIN_BOUND)}",
                "–" if worse is None else f"{worse:.0f}{_unmet(worse >= TEN_TIMES)}",
            ]
        )
    heads = ["method", "features", "reports", "ε", "ARI", "RMSE", "bound", "over bound", "Laplace + FCM is worse by"]
    return _table(heads, lines)


def rmse_tables(summaries: Sequence[CentroidSummary]) -> str:
    """A table for each set whose means are known: RMSE (ARI), a row a method, a column an epsilon, the bound last."""
    parts = []
    for (name, n), group in _by_set(s for s in summaries if s.set.startswith("blobs")).items():
        epsilons = _epsilons(group)
        bounds = {s.epsilon: s.bound for s in group if s.bound is not None}
        lines = [[method, *(_pair(group, method, epsilon) for epsilon in epsilons)] for method in _methods(group)]
        lines.append(["*information bound*", *(_plain(bounds.get(epsilon), 4) for epsilon in epsilons)])
        parts.append(f"**{name}, {n:,} reports**\n\n" + _table(["method", *(f"ε={e:g}" for e in epsilons)], lines))
    return "\n".join(parts)


def nicv_tables(summaries: Sequence[CentroidSummary]) -> str:
    """A table for each epsilon: NICV over k-means', a row a set, a column a method."""
    methods = [
        name for name in _methods(summaries) if METHODS[name].kind != "paper" and name not in (FCM, K_MEANS, AUTO)
    ]
    parts = []
    for epsilon in _epsilons(summaries):
        lines = []
        for (name, n), group in _by_set(summaries).items():
            cells = [_plain(_nicv(group, method, epsilon), 2) for method in methods]
            if set(cells[:-1]) != {"–"}:
                first = group[0]
                lines.append([f"{name}{first.mark}", f"{n:,}", f"{first.n_features}", f"{first.clusters}", *cells])
        if lines:
            heads = ["set", "reports", "features", "K", *methods]
            parts.append(f"**ε = {epsilon:g}**\n\n" + _table(heads, lines))
    return "\n".join(parts)


def ablation_tables(summaries: Sequence[CentroidSummary]) -> str:
    """For each set the paper's two measures, and RMSE: a row a distance, a column an epsilon, NoPriv last."""
    parts = []
    for (name, n), group in _by_set(s for s in summaries if s.method in (*ABLATION, FCM)).items():
        epsilons = _epsilons(group)
        if len({s.method for s in group if s.method in ABLATION}) < 2:
            continue  # nothing to compare
        lines = []
        for measure, said, digits in (("f_measure", "F-measure", 3), ("entropy", "Entropy", 3), ("rmse", "RMSE", 3)):
            for method, short in (*ABLATION.items(), (FCM, "NoPriv")):
                values = [_value(group, method, epsilon, measure) for epsilon in epsilons]
                if any(value is not None for value in values):
                    lines.append([short, said, *(_plain(value, digits) for value in values)])
        heads = ["scheme", "measure", *(f"ε={epsilon:g}" for epsilon in epsilons)]
        parts.append(f"**{name}{group[0].mark}, {n:,} reports**\n\n" + _table(heads, lines))
    return "\n".join(parts)


def time_table(summaries: Sequence[CentroidSummary]) -> str:
    """CPU seconds of the server (over non-private FCM on the same array; of the bare iterations), of one set."""
    group = [s for s in summaries if (s.set, s.n) == TIMED and s.time_ratio is not None]
    epsilons = [epsilon for epsilon in _epsilons(group) if epsilon >= 1]
    lines = [[method, *(_time(_at(_of(group, method), epsilon)) for epsilon in epsilons)] for method in _methods(group)]
    return _table(["method", *(f"ε={epsilon:g}" for epsilon in epsilons)], lines if epsilons else [])


def _at(of: Sequence[CentroidSummary], epsilon: float) -> CentroidSummary | None:
    return next((s for s in of if s.epsilon in (epsilon, None)), None)


def _time(summary: CentroidSummary | None) -> str:
    if summary is None or summary.seconds is None:
        return "–"
    loop = "" if summary.loop_ratio is None else f"; {summary.loop_ratio:.2f}"
    return f"{summary.seconds:.2f} s ({_plain(summary.time_ratio, 2)}{loop})"


def label_table(summaries: Sequence[CentroidSummary]) -> str:
    """ARI of labels given on devices, of labels given to noisy reports, and of those by the true centroids."""
    chosen = [s for s in summaries if s.report_ari is not None and s.set.startswith("blobs")]
    lines = [
        [s.set, s.method, f"{s.epsilon:g}", *(_plain(v, 3) for v in (s.ari, s.report_ari, s.report_ari_true))]
        for s in chosen
        if s.method in ("noisy_fcm", "PrivKM")
    ]
    return _table(["set", "method", "ε", "on devices", "of noisy reports", "the same, true centroids"], lines)


def regret_table(summaries: Sequence[CentroidSummary]) -> str:
    """NICV over k-means' of the two that find centroids, of what `auto` takes, and what it loses to the better."""
    lines = []
    lost: dict[bool, list[tuple[float, float, float]]] = {}
    for s in _of(summaries, AUTO):
        group = [each for each in summaries if (each.set, each.n) == (s.set, s.n)]
        sketch, grid = (_nicv(group, method, s.epsilon) for method in (OURS, GRID))
        if s.nicv_ratio is None or sketch is None or grid is None:
            continue
        taken = (s.nicv_ratio, sketch, grid)
        regrets = [value / min(sketch, grid) - 1 for value in taken]
        lost.setdefault(s.n_features <= MAX_SHIFTED_FEATURES, []).append((regrets[0], regrets[1], regrets[2]))
        cells = [_plain(value, 3) for value in (sketch, grid, s.nicv_ratio)]
        heads = [f"{s.set}{s.mark}", f"{s.n_features}", f"{s.clusters}", f"{s.n:,}", f"{s.epsilon:g}"]
        lines.append([*heads, *cells, _percent(regrets[0])])
    table = _table(["set", "features", "K", "reports", "ε", OURS, GRID, AUTO, "regret"], lines)
    return "\n".join([table, *(_mean_regret(few, of) for few, of in sorted(lost.items()))])


def _mean_regret(few: bool, lost: Sequence[tuple[float, float, float]]) -> str:
    features = "up to three features" if few else "four features"
    means = [_percent(fmean(column)) for column in zip(*lost, strict=True)]
    worst = _percent(max(each[0] for each in lost))
    return (
        f"Mean regret in {features}, {len(lost)} rows: `{AUTO}` {means[0]} (at worst {worst}), "
        f"`{OURS}` throughout {means[1]}, `{GRID}` throughout {means[2]}.\n"
    )


def _percent(share: float) -> str:
    return f"{round(100 * share) + 0:d} %"


def full_table(summaries: Sequence[CentroidSummary]) -> str:
    """Every measure of everything."""
    names = ("f_measure", "entropy", "ari", "rmse", "bound", "nicv_ratio", "report_f_measure", "report_ari")
    heads = ["set", "reports", "ε", "method", *names, "seconds", "time ratio", "devices' s", "seeds"]
    lines = [
        [
            f"{s.set}{s.mark}",
            f"{s.n:,}",
            "" if s.epsilon is None else f"{s.epsilon:g}",
            s.method,
            *(_plain(getattr(s, name), 4 if name in ("rmse", "bound") else 3) for name in names),
            *(_plain(value, 2) for value in (s.seconds, s.time_ratio, s.device_seconds)),
            f"{s.runs}" + (f", {s.refused} refused" if s.refused else ""),
        ]
        for s in summaries
    ]
    return _table(heads, lines)


def _of(summaries: Iterable[CentroidSummary], method: str) -> list[CentroidSummary]:
    return [s for s in summaries if s.method == method]


def _value(group: Sequence[CentroidSummary], method: str, epsilon: float | None, measure: str) -> float | None:
    """A method's measure at an epsilon; of what is not private, its only one."""
    found = [getattr(s, measure) for s in _of(group, method) if s.epsilon in (epsilon, None)]
    return found[0] if found else None


def _nicv(group: Sequence[CentroidSummary], method: str, epsilon: float | None) -> float | None:
    return _value(group, method, epsilon, "nicv_ratio")


def _pair(group: Sequence[CentroidSummary], method: str, epsilon: float) -> str:
    rmse, ari = (_value(group, method, epsilon, measure) for measure in ("rmse", "ari"))
    return "–" if rmse is None or ari is None else f"{rmse:.4f} ({ari:.2f})"


def _by_set(summaries: Iterable[CentroidSummary]) -> dict[tuple[str, int], list[CentroidSummary]]:
    groups: dict[tuple[str, int], list[CentroidSummary]] = {}
    for summary in summaries:
        groups.setdefault((summary.set, summary.n), []).append(summary)
    return groups


def _methods(summaries: Iterable[CentroidSummary]) -> list[str]:
    present = {summary.method for summary in summaries}
    return [name for name in METHODS if name in present]


def _epsilons(summaries: Iterable[CentroidSummary]) -> list[float]:
    return sorted({s.epsilon for s in summaries if s.epsilon is not None})


def _plain(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def _unmet(met: bool) -> str:
    return "" if met else " ✗"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    texts = ("method", "set", "scheme", "measure")
    rule = ["---" if head in texts else "---:" for head in heads]
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
