"""Print datasets, jobs, clusters and rounds as tables with bars."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from service.cli.tables import CHARGED, FREE, RESERVED, budget_bar, new_table, plain, share_bar
from sfumato.api.budgets import Budget
from sfumato.api.resources import Dataset, Job
from sfumato.model.levels import describe_levels
from sfumato.plotting.shading import colour
from sfumato.privacy.accounting import NANO, format_delta, format_epsilon

if TYPE_CHECKING:
    from service.cli.report import ReportedRound
    from sfumato.api.client import Client
    from sfumato.api.resources import Result, Round
    from sfumato.forecast import ProfileForecast
    from sfumato.model.cluster_model import ClusterModel
    from sfumato.privacy.ledger import LedgerEntry
    from sfumato.profiles.cluster_profile import ClusterProfile

_CARD_VALUES = 5  # values of a cluster


# ---- datasets and jobs ----


def print_datasets(console: Console, client: "Client", **filters: Any) -> None:
    """Print one row per dataset, with its budget if the key may read the ledger. A shuffled dataset has two."""
    legend = f"{CHARGED} charged {RESERVED} reserved {FREE} free"
    numbers = ("features", "ε free", "ε granted")
    table = new_table("id", "name", "trust", "features", legend, "ε free", "ε granted", numbers=numbers)
    for each in client.datasets(**filters):
        budget = _budget(client, each.id)
        if budget is None:
            table.add_row(*_name_cells(each), "", "", "")
            continue
        balance = budget.balance
        bar = budget_bar(balance.granted_nano, balance.charged_nano, balance.reserved_nano)
        amounts = (format_epsilon(budget.remaining_nano), format_epsilon(balance.granted_nano))
        table.add_row(*_name_cells(each), bar, *amounts)
        if balance.granted_shuffled_nano:
            amounts = (format_epsilon(budget.remaining_shuffled_nano), format_epsilon(balance.granted_shuffled_nano))
            if balance.release_accounting == "gaussian":
                amounts = (f"{budget.remaining_shuffled_share or 0:.1%}", amounts[1])
            table.add_row("", "", "to service", "", _shuffled_bar(budget), *amounts)
    console.print(table if table.row_count else "There are no datasets yet.")


def print_dataset(console: Console, client: "Client", dataset_id: str) -> None:
    """Print a dataset with its features, its budget if the key may read it, and its rounds."""
    dataset = client.get_dataset(dataset_id)
    table = new_table("feature", "lower", "upper", "unit", "shape", numbers=("lower", "upper"))
    for feature in dataset.features:
        cells = (f"{feature.lower:g}", f"{feature.upper:g}", plain(feature.unit), feature.shape)
        table.add_row(plain(feature.name), *cells)
    console.print(f"{dataset.id}  {plain(dataset.name)}  {dataset.trust}")
    console.print(table)
    for attribute in dataset.attributes:
        role = "; forms clusters" if attribute.use == "cluster" else ""
        console.print(plain(f"Attribute {attribute.name}: {', '.join(attribute.categories)}{role}"))
    if dataset.shuffler is not None:
        name, url = (plain(part) for part in (dataset.shuffler.name, dataset.shuffler.url))
        console.print(f"Shuffler: {name}, {url}, public key {dataset.shuffler.public_key}")
    if dataset.trust == "local":
        console.print(f"A round needs at least {dataset.min_reports:,} reports.")
    if (budget := _budget(client, dataset_id)) is not None:
        balance = budget.balance
        bar = budget_bar(balance.granted_nano, balance.charged_nano, balance.reserved_nano)
        free, granted = format_epsilon(budget.remaining_nano), format_epsilon(balance.granted_nano)
        console.print(f"{bar}  ε {free} of {granted} free")
        if balance.granted_shuffled_nano:
            _print_shuffled_budget(console, budget)
    if opened := list(client.rounds(dataset_id)):
        print_rounds(console, opened)


def print_source(console: Console, client: "Client", label: str | None, name: str | None) -> None:
    """Print the costs of all datasets over the same people, and what limits them."""
    source = client.source(label, name=name)
    table = new_table("dataset", "name", "granted ε", "charged ε", "reserved ε", "deleted", numbers=("charged ε",))
    for each in source.datasets:
        amounts = [f"{amount:g}" for amount in (each.granted, each.charged, each.reserved)]
        table.add_row(each.id, plain(each.name), *amounts, "yes" if each.deleted_at else "")
    console.print(table)
    sums = f"ε {source.charged:g} charged and {source.reserved:g} reserved in {source.n_datasets:,} datasets"
    if source.delta_charged or source.delta_reserved:
        sums += f", δ {source.delta_charged:g} charged and {source.delta_reserved:g} reserved"
    console.print(f"{sums}.")
    if source.accounting == "gaussian" and source.certified_epsilon is not None:
        console.print(f"All charges together certify ε {source.certified_epsilon:g} at δ {source.limit.delta:g}.")
    if source.limit.epsilon is None:
        console.print("No limit.")
    else:
        rule = "the largest grant of one dataset" if source.limit.rule == "grants" else "set by the operator"
        console.print(f"Limit: ε {source.limit.epsilon:g}, {rule}; {source.limit.remaining_share or 0:.1%} remains.")


def _shuffled_bar(budget: Budget) -> str:
    """Return a bar of the part of the budget towards the service that is charged."""
    return budget_bar(NANO, ceil(NANO * (1 - (budget.remaining_shuffled_share or 0))), 0)


def _print_shuffled_budget(console: Console, budget: Budget) -> None:
    balance, bar = budget.balance, _shuffled_bar(budget)
    free, granted = format_epsilon(budget.remaining_shuffled_nano), format_epsilon(balance.granted_shuffled_nano)
    atto = (budget.remaining_shuffled_delta_atto, balance.granted_shuffled_delta_atto)
    free_delta, granted_delta = map(format_delta, atto)
    if balance.release_accounting == "gaussian":
        share, certified = budget.remaining_shuffled_share or 0, budget.spent.certified_shuffled_epsilon
        so_far = "above 32" if certified is None else f"{certified:g}"
        console.print(f"{bar}  {share:.1%} of ε {granted}, δ {granted_delta} free towards the service")
        console.print(f"All releases together certify ε {so_far} at δ {granted_delta} towards the service.")
    else:
        console.print(f"{bar}  ε {free} of {granted}, δ {free_delta} of {granted_delta} free towards the service")
    console.print("The second budget holds if the shuffler and the operator do not work together.")


def _budget(client: "Client", dataset_id: str) -> Budget | None:
    """Return a dataset's budget, or None if the key may not read the ledger."""
    from sfumato.errors import ApiProblem

    try:
        return client.budget(dataset_id)
    except ApiProblem as problem:
        if problem.status not in (403, 404):
            raise
        return None


def _name_cells(dataset: Dataset) -> tuple[str, str, str, str]:
    return dataset.id, plain(dataset.name), dataset.trust, str(len(dataset.features))


def print_jobs(console: Console, jobs: Iterable[Job]) -> None:
    """Print one row per job."""
    numbers = ("ε", "rounds", "reports")
    table = new_table("id", "state", "verdict", "algorithm", *numbers, "submitted", numbers=numbers)
    for each in jobs:
        used = ("", "") if each.used is None else (str(each.used.n_rounds), f"{each.used.n_reports:,}")
        submitted = f"{each.created_at:%Y-%m-%d %H:%M:%S}"
        verdict = "" if each.verdict is None else each.verdict.value
        table.add_row(each.id, each.state, verdict, str(each.algorithm["type"]), f"{each.cost:g}", *used, submitted)
    console.print(table if table.row_count else "There are no jobs yet.")


def print_entries(console: Console, entries: Iterable["LedgerEntry"]) -> None:
    """Print ledger entries as a table."""
    table = new_table("#", "time (UTC)", "kind", "ε", "δ", "reference", "actor", numbers=("#", "ε", "δ"))
    table.columns[-2].no_wrap = table.columns[-1].no_wrap = True
    for entry in entries:
        amounts = format_epsilon(entry.epsilon_nano), format_delta(entry.delta_atto)
        at = f"{entry.at:%Y-%m-%d %H:%M:%S}"
        table.add_row(f"{entry.seq:,}", at, entry.kind, *amounts, entry.reference, entry.actor)
    console.print(table if table.row_count else "There are no such entries.")


def watch_job(console: Console, client: "Client", job_id: str, timeout_seconds: float | None) -> bool:
    """Show the progress of a job until it ends, then its clusters or its error. Return whether it succeeded.

    A terminal shows one table that is updated in place. Other outputs get a line at each change.
    """
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            job = client.wait_for_job(
                job_id,
                timeout_seconds=timeout_seconds,
                on_progress=lambda job: live.update(_progress_table(job), refresh=True),
            )
    else:
        last_line = ""

        def print_change(job: Job) -> None:
            nonlocal last_line
            line = _progress_line(job)
            if line != last_line:
                last_line = line
                console.print(line, markup=False)

        job = client.wait_for_job(job_id, timeout_seconds=timeout_seconds, on_progress=print_change)
    if job.state == "succeeded":
        print_result(console, client.result(job_id))
        return True
    if job.error is not None:
        console.print(f"{job.error.code}: {job.error.detail or ''}", markup=False)
    return False


def print_result(console: Console, result: "Result") -> None:
    """Print the clusters of a result, its verdict, its warnings and its cost."""
    if result.profile is not None:
        _print_cards(console, result.profile)
    else:
        _print_clusters(console, result.model)
    console.print(f"The job cost ε = {result.epsilon:g}. To save its plot, run: sfumato plot {result.job_id}")


def _print_cards(console: Console, profile: "ClusterProfile") -> None:
    """Print the values that distinguish each cluster."""
    from sfumato.model.cluster_names import cluster_title
    from sfumato.plotting.figures import format_share

    for cluster in range(profile.n_clusters):
        share = format_share(float(profile.sizes[cluster]), float(profile.size_errors[cluster]))
        console.print(f"{plain(cluster_title(profile.names, cluster))}: {share} of people")
        listed = profile.distinguishing(cluster)
        if not listed:
            is_small = cluster in profile.too_small
            console.print("  too few records to describe" if is_small else "  no distinguishing value")
        for each in listed[:_CARD_VALUES]:
            console.print(f"  {plain(str(each))}")
    rate = round(1 / profile.false_discovery_rate)
    console.print(f"About 1 in {rate} of the listed values may be chance. ± is one standard error of the noise.")


def print_profile_forecast(console: Console, forecast: "ProfileForecast") -> None:
    """Print the expected errors of a profile."""
    console.print(f"A count has noise of about ± {forecast.noise_per_count:.3g} people.")
    needed = [f"; ± 2 points need {n:,} reports" for n in forecast.reports_needed]
    for cluster, error in enumerate(forecast.share_errors):
        console.print(f"cluster {cluster}: shares ± {100 * error:.1f} points{needed[cluster] if needed else ''}")
    for warning in forecast.warnings:
        console.print(f"- {warning}")


def _progress_line(job: Job) -> str:
    progress = job.progress
    waiting = job.state == "collecting" and progress.target_reports
    filled = f", {progress.n_received:,} of {progress.target_reports:,} reports" if waiting else ""
    if job.round_ids and job.used is not None:
        reports = f"{job.used.n_reports:,} reports, already charged ε = {job.used.epsilon:g}"
        return f"{job.id} {job.state}, earlier rounds: {job.used.n_rounds} with {reports}"
    return f"{job.id} {job.state}, rounds opened: {progress.rounds_opened}{filled}"


def _progress_table(job: Job) -> Table:
    table = new_table("job", "state", "rounds", "reports of the open round", "", numbers=("rounds",))
    progress = job.progress
    bar = counts = ""
    if job.state == "collecting" and progress.target_reports:
        bar = share_bar(progress.n_received, progress.target_reports)
        counts = f"{progress.n_received:,} of {progress.target_reports:,}"
    table.add_row(job.id, job.state, str(progress.rounds_opened), bar, counts)
    return table


def _print_clusters(console: Console, model: "ClusterModel", limit: int = 50) -> None:
    """Print one row per cluster: the share as a bar in the colour of the plot, and the centre."""
    from sfumato.model.geography import shown_values
    from sfumato.plotting.figures import format_share, share

    names = [feature.name for feature in model.features] if model.centroids is not None else []
    columns = [plain(name) for name in names[:4]]
    named = [*(["name"] if model.names else []), *(["id"] if model.ids else [])]
    table = new_table(
        "cluster", *named, "", "share of people ± standard error", *columns, numbers=("cluster", *columns)
    )
    largest = max(model.sizes.tolist(), default=0.0)
    for cluster in range(min(model.n_clusters, limit)):
        hue = colour(cluster)[1]
        centre = []
        if model.centroids is not None:
            centre = [f"{value:.4g}" for value in shown_values(model.features[:4], model.centroids[cluster, :4])]
        bar = f"[{hue}]{share_bar(float(model.sizes[cluster]), largest)}[/]"
        name = [plain(model.names[cluster])] if model.names else []
        own_id = [model.ids[cluster] or ""] if model.ids else []
        table.add_row(str(cluster), *name, *own_id, bar, share(model, cluster), *centre)
    console.print(table if table.row_count else "No cluster stands out from the noise.")
    if model.n_clusters > limit:
        console.print(f"and {model.n_clusters - limit} more")
    if model.outside_share is not None:
        outside = format_share(model.outside_share, model.outside_share_error or 0.0)
        console.print(f"Outside of the bounds: {outside} of the people. Shares are of those inside.")
    if model.dishonest_shares is not None and len(model.dishonest_shares):
        fewest = ", ".join(f"{100 * share:.2g} %" for share in model.dishonest_shares[:limit])
        console.print(f"Dishonest devices that could have made each cluster, at least: {fewest}")
    console.print(f"Verdict: {model.verdict.value}. {model.verdict_reason}".rstrip(), markup=False)
    for figure in model.further_figures:
        console.print(figure)
    if model.expected_agreement is not None:
        console.print("Repeated runs reproduce the clusters this well. They may still differ from the true groups.")
    if len(shares := model.column_shares) > 1:
        largest_first = sorted(shares.items(), key=lambda each: -each[1])[:4]
        listed = ", ".join(f"{plain(name)} {share:.0%}" for name, share in largest_first)
        console.print(f"Share of the features in the separation: {listed}")
    if nested := describe_levels(model.levels):
        console.print(f"Supported about as well: {nested}")
    for warning in model.warnings:
        console.print(f"Note: {warning}", markup=False)


# ---- rounds ----


def print_rounds(console: Console, rounds: Iterable["Round"]) -> None:
    """Print one row per round: state, cost per installation, and reports received."""
    table = new_table(
        "round", "state", "encoding", "ε per installation", "reports received", "", numbers=("ε per installation",)
    )
    for each in rounds:
        bar = share_bar(each.n_received, each.target_reports)
        counts = f"{each.n_received:,} of {each.target_reports:,}"
        table.add_row(each.id, each.state, each.spec.encoding.type, f"{each.epsilon:g}", bar, counts)
    console.print(table if table.row_count else "There are no rounds yet.")


def print_reported(console: Console, rounds: Sequence["ReportedRound"]) -> None:
    """Print one row per round: reports sent, cost per installation, and reports received."""
    numbers = ("reports sent", "ε per installation")
    table = new_table("round", *numbers, "reports received", "", numbers=numbers)
    for each in rounds:
        bar = share_bar(each.round.n_received, each.round.target_reports)
        counts = f"{each.round.n_received:,} of {each.round.target_reports:,}"
        cost = format_epsilon(round(each.round.epsilon * NANO))
        table.add_row(each.round.id, f"{each.n_sent:,}", cost, bar, counts)
    console.print(table)
