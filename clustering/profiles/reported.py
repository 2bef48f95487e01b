"""Profile of released clusters from the reports of a profile round.

Each report has the cluster of a person together with the category of one attribute, which the slot names. The shares of
all cells of an attribute follow from its slot. They are scaled to the number of all reports, so that all slots estimate
the same people, and are made consistent as the tables of records are. The errors contain the noise of the reports and
the draw of one attribute by each person. All fields are computed from the tally, so they cost nothing more.
"""

from math import sqrt
from typing import cast

import numpy as np

from clustering.profiles.distinctions import FALSE_DISCOVERIES as RATE
from clustering.profiles.distinctions import (
    find_distinctions,
    list_clearest,
    name_distinction,
    small_warnings,
    too_small,
)
from clustering.profiles.shares import ConsistentTables, Floats, Noise, make_consistent, share_variances
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.law import NO_HONEST_TALLY, find_faults
from clustering.rounds.outside import outside_share
from clustering.rounds.plan import Collected
from sfumato.forecast.profiles import WARN_ERROR
from sfumato.model.cluster_model import PrivacyStatus
from sfumato.profiles.cluster_profile import AttributeProfile, ClusterProfile
from sfumato.specs import ProfileEncoding

FIELDS = ("sizes", "size_errors", "counts", "association", "shares", "share_errors", "distinguishing", "too_small")
PRIVACY: dict[str, PrivacyStatus] = {
    **dict.fromkeys((*FIELDS, "names"), "post_processed"),
    "values": "public",
    "false_discovery_rate": "public",
}


def profile_reports(of: str, collected: Collected) -> ClusterProfile:
    """Return the profile of the clusters of job `of` from a profile round with at least one report.

    Parameters
    ----------
    of : str
        Id of the job that released the clusters.
    collected : Collected
        Round with a `ProfileEncoding`, and its tally.
    """
    spec, tally = collected.spec, collected.tally
    encoding = cast(ProfileEncoding, spec.encoding)
    reading, n = decoder(spec.mechanism), tally.n_reports
    tables = _tables(encoding, reading, collected)
    noise = _noise(encoding, reading, collected, tables)
    found = make_consistent(tables, noise)
    small = too_small(found)
    distinctions, n_tested = find_distinctions(found, noise, max_per_user=1)
    listed, cut = list_clearest(distinctions)
    total = max(float(found.numbers.sum()), 1.0)
    errors = [np.sqrt(share_variances(found, place, noise)) for place in range(encoding.n_slots)]
    warnings = small_warnings(small, encoding.n_clusters) + cut + _warn_errors(errors, small)
    if faults := find_faults(collected):
        warnings.insert(0, NO_HONEST_TALLY.format(what="; ".join(faults)))
    diagnostics = {"noise_per_count": sqrt(noise.variance), "n_reports": n, "reports": tally.reports.tolist()}
    if spec.counts_outside:
        outside = outside_share(collected)
        diagnostics |= {"outside_share": min(max(outside.value, 0.0), 1.0), "outside_share_error": outside.error}
    return ClusterProfile(
        of=of,
        sizes=np.maximum(found.numbers, 0.0) / max(float(np.maximum(found.numbers, 0.0).sum()), 1.0),
        size_errors=np.full(encoding.n_clusters, min(sqrt(found.number_variance) / total, 1.0)),
        attributes=tuple(
            AttributeProfile(
                attribute.name,
                "described",
                *_association(found, place, noise),
                attribute.categories,
                np.rint(tables[place]).astype(np.int64),
                found.shares[place],
                np.minimum(errors[place], 1.0),
            )
            for place, attribute in enumerate(encoding.attributes)
        ),
        distinctions=tuple(name_distinction(each, encoding.attributes) for each in listed),
        too_small=tuple(small),
        false_discovery_rate=RATE,
        n_tested=n_tested,
        warnings=tuple(warnings),
        diagnostics=diagnostics,
        privacy=PRIVACY,
    )


def _tables(encoding: ProfileEncoding, reading: Decoder, collected: Collected) -> list[Floats]:
    """Return the estimated number of people of each cell, of all people with a report: a table of each attribute."""
    found = reading.frequencies(collected.tally)[:, : encoding.n_symbols] * collected.tally.n_reports
    cells = found.reshape(encoding.n_slots, encoding.n_clusters, encoding.n_values)
    return [cells[place, :, : len(each.categories)] for place, each in enumerate(encoding.attributes)]


def _noise(encoding: ProfileEncoding, reading: Decoder, collected: Collected, tables: list[Floats]) -> Noise:
    """Return the noise of the tables. An attribute without reports has the noise of one report."""
    n, reports = collected.tally.n_reports, np.maximum(collected.tally.reports, 1)
    shares = [np.clip(table / n, 0.0, 1.0) for table in tables]
    spread, slope = reading.zero_variance, reading.slope_variance
    cells = tuple(
        np.maximum(spread + slope * share, 0.0) * n**2 / of for share, of in zip(shares, reports.tolist(), strict=True)
    )
    mean = max(spread + slope / encoding.n_symbols, 0.0) * n**2 * float((1 / reports).mean())
    return Noise(mean, cells=cells, n_drawn=encoding.n_slots)


def _association(found: ConsistentTables, place: int, noise: Noise) -> tuple[float, float]:
    """Return the association of an attribute with the clusters, and its standard error.

    The L1 distance of the noise alone is removed as a square: what remains is near 0 without an association, and near
    the true one if that is above the noise.
    """
    table, total = found.tables[place], max(float(found.numbers.sum()), 1.0)
    sizes = np.maximum(found.numbers, 0.0) / max(float(np.maximum(found.numbers, 0.0).sum()), 1.0)
    distance = 0.5 * float(np.abs(table - sizes[:, None] * table.sum(axis=0)).sum()) / total
    share = np.clip(table / total, 0.0, 1.0)
    variances = noise.of(place, table.shape) * (1 - sizes[:, None]) + (noise.n_drawn - 1) * total * share * (1 - share)
    alone = 0.5 * float(np.sqrt(2 / np.pi * variances).sum()) / total
    error = 0.5 * sqrt(float(variances.sum())) / total
    return min(sqrt(max(distance**2 - alone**2, 0.0)), 1.0), min(error, 1.0)


def _warn_errors(errors: list[Floats], small: list[int]) -> list[str]:
    largest = np.max([each.max(axis=1) for each in errors], axis=0)
    noisy = [str(c) for c, error in enumerate(largest.tolist()) if error > WARN_ERROR and c not in small]
    if not noisy:
        return []
    return [
        f"Shares in these clusters have errors above {WARN_ERROR:.0%}: {', '.join(noisy)}. Collect more reports, "
        "increase epsilon, or name fewer attributes."
    ]
