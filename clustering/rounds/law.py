"""Dishonest devices: how few could have made each cluster, and a test for tallies that honest devices do not give.

The service cannot distinguish a false report from an honest one. A tally can still contradict every population of
honest devices, with any records:

- Slots are uniform, and so are the coefficients of Hadamard response.
- Under unary encoding, a report names p + (k - 1) q symbols in the mean.
- No share of people is negative. Reports that name several chosen symbols at once push the estimates of all others
  below zero by more than noise does.
- The share of people outside of the bounds is the same in each slot.

Each p-value is a bound by Bernstein's inequality or the tail of a chi-square distribution. Bonferroni's inequality
joins them. The test finds crude attacks. Reports that keep to the law, such as those of honest software with false
records, pass.
(Facts: Cao, Jia and Gong 2021, "Data poisoning attacks to local differential privacy protocols", for attacks of
maximal gain; arXiv 2403.09351 for negative frequencies as their trace.)
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected, Plan
from clustering.rounds.tally import keeps_vectors
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict
from sfumato.specs import (
    CentroidSignEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    RoundSpec,
)

FALSE_ALARM = 1e-5  # bound on the probability that a round of honest devices fails
LEAST_NORMAL = 25  # expected count from which a binomial is taken as normal

NO_HONEST_TALLY = (
    "The reports contradict the mechanism of the round: {what}. Honest devices give such reports with a probability "
    "below 1 in 100,000. Some devices were dishonest or faulty, and the result may be wrong."
)
EASIEST = " {share} of dishonest devices could have made cluster {cluster}. `dishonest_shares` has all bounds."


def checking_law(plan: Plan) -> Plan:
    """Return a plan that tests each of its rounds, and states for each cluster how few devices could have made it.

    Parameters
    ----------
    plan : Plan
        A plan that has not started.
    """
    faults: list[str] = []
    collected: Collected | None = None
    try:
        spec = next(plan)
        while True:
            collected = yield spec
            faults += find_faults(collected)
            spec = plan.send(collected)
    except StopIteration as done:
        model: ClusterModel = done.value
        return model if collected is None else _stated(model, collected.spec, faults)
    finally:
        plan.close()


def _stated(model: ClusterModel, spec: RoundSpec, faults: list[str]) -> ClusterModel:
    shares = np.minimum(model.sizes / _amplifications(model, spec), np.maximum(model.sizes, 0.0))
    shares = np.clip(shares, 0.0, 1.0)
    warnings, verdict, reason = list(model.warnings), model.verdict, model.verdict_reason
    if faults:
        warning = NO_HONEST_TALLY.format(what="; ".join(dict.fromkeys(faults)))
        if len(shares):
            warning += EASIEST.format(share=f"{100 * shares.min():.2g} %", cluster=int(shares.argmin()))
        warnings.insert(0, warning)
        verdict, reason = Verdict.DOUBTFUL, warning
    return replace(model, dishonest_shares=shares, warnings=tuple(warnings), verdict=verdict, verdict_reason=reason)


# ---- how few could have made a cluster ----


def _amplifications(model: ClusterModel, spec: RoundSpec) -> NDArray[np.float64]:
    """Return how far one report can move the estimated share of each cluster, in units of 1/n.

    A report names at most d symbols. It moves a region of m symbols by at most (min(d, m) - m q) / (p - q), with m of
    the region's symbols chosen best. For phases the bound is that of one wave. A vector is one vector.
    """
    mechanism, n_clusters = spec.mechanism, model.n_clusters
    if keeps_vectors(spec):
        return np.ones(n_clusters)
    if isinstance(spec.encoding, PhaseEncoding):
        chances = np.array([float(chance) for chance in mechanism.offset_chances()])
        wave = np.exp(2j * np.pi * np.arange(len(chances)) / len(chances))
        return np.full(n_clusters, 1 / abs(complex(chances @ wave)))
    reading = decoder(mechanism)
    if isinstance(spec.encoding, CentroidSignEncoding):
        return np.full(n_clusters, 1 / (reading.p - reading.q))
    if isinstance(spec.encoding, NearestCentroidEncoding):
        n_symbols = np.full(n_clusters, 2.0)
    elif model.label_map is not None:
        cells = np.bincount(model.label_map.ravel(), minlength=n_clusters)
        n_symbols = np.ceil(cells / model.label_map.size * spec.encoding.n_symbols)
    else:
        n_symbols = np.full(n_clusters, np.ceil(spec.encoding.n_symbols / max(1, n_clusters)))
    named = np.minimum(mechanism.n_named or reading.n_symbols, np.maximum(n_symbols, 1))
    return np.asarray(np.maximum(named * (1 - reading.q) / (reading.p - reading.q), 1.0), dtype=np.float64)


# ---- the law of a tally ----


def find_faults(collected: Collected) -> list[str]:
    """Return what in a tally no population of honest devices gives, as parts of a sentence.

    Rounds of fewer than 100 reports, of vectors and of phases are tested for their slots alone. The probability of a
    fault without dishonest devices is at most `FALSE_ALARM` for each round.
    """
    spec = collected.spec
    if keeps_vectors(spec) or collected.tally.n_reports < 100:
        return []
    tests = [(what, chance) for what, chance in _tests(collected)]
    return [what for what, chance in tests if chance < FALSE_ALARM / len(tests)]


def _tests(collected: Collected) -> Iterator[tuple[str, float]]:
    """Yield each test with a bound on its probability under honest devices."""
    spec, tally = collected.spec, collected.tally
    mechanism = spec.mechanism
    yield "slots are not uniform", _uniform(tally.reports)
    if mechanism.n_coefficients:
        pairs = tally.counts.sum(axis=0)
        yield "coefficients are not uniform", _uniform(pairs[0::2] + pairs[1::2])
    if not mechanism.has_support or mechanism.form == "hash" or spec.encoding.n_slots * mechanism.n_symbols > 1 << 20:
        return
    reading = decoder(mechanism)
    if reading.q == 0:
        return
    n = tally.n_reports
    if mechanism.form == "bits" and mechanism.n_named is None:
        k, total = mechanism.n_symbols, float(tally.counts.sum())
        mean = n * (reading.p + (k - 1) * reading.q)
        variance = n * (reading.p * (1 - reading.p) + (k - 1) * reading.q * (1 - reading.q))
        yield "reports name too many or too few symbols", _bernstein(abs(total - mean), variance, k)
    if mechanism.n_coefficients:
        return
    yield "shares of people are negative", _negative(collected, reading)
    if spec.has_outside_symbol and spec.encoding.n_slots > 1 and tally.reports.min() > 0:
        found = reading.frequencies(tally)[:, -1]
        share = float(tally.reports @ found / n)
        per_report = reading.variance(min(max(share, 0.0), 1.0), 1) + share * (1 - min(share, 1.0))
        spread = float((tally.reports * (found - share) ** 2).sum() / max(per_report, 1e-12))
        yield "shares outside differ between slots", float(chdtrc(spec.encoding.n_slots - 1, spread) ** 0.9)


def _negative(collected: Collected, reading: Decoder) -> float:
    """Return a bound on the probability of the least count over all slots, by symbol: a count is at least binomial q.

    The counts of all slots together are tested too, where a symbol has the same meaning in none of them: their sum is
    at least binomial in the same way.
    """
    tally = collected.tally
    pooled = tally.counts.sum(axis=0, keepdims=True) if len(tally.reports) > 1 else tally.counts[:0]
    counts = np.concatenate([tally.counts, pooled])
    reports = np.concatenate([tally.reports, np.full(len(pooled), tally.n_reports)])[:, None]
    missing = np.maximum(reports * reading.q - counts, 0.0)
    variance = reports * reading.q * (1 - reading.q)
    exponents = missing**2 / (2 * np.maximum(variance + missing / 3, 1e-12))
    least = min(1.0, exp(log(counts.size) - float(exponents.max())))
    if tally.reports.min() * reading.q < LEAST_NORMAL:
        return least
    own = len(tally.reports)
    together = float((missing[:own] ** 2 / variance[:own]).sum())  # below a chi-square of as many degrees of freedom
    return min(1.0, 2 * min(least, float(chdtrc(tally.counts.size, together))))


def _uniform(counts: NDArray[np.int64]) -> float:
    """Return the p-value of a chi-square test of uniform counts; 1 if they are few."""
    n, k = int(counts.sum()), len(counts)
    if k == 1 or n < 5 * k:
        return 1.0
    return float(chdtrc(k - 1, ((counts - n / k) ** 2).sum() / (n / k)))


def _bernstein(deviation: float, variance: float, bound: float) -> float:
    """Return Bernstein's bound on a two-sided deviation of a sum of independent terms of at most `bound` each."""
    return min(1.0, 2 * exp(-(deviation**2) / (2 * (variance + bound * deviation / 3))))
