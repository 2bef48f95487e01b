"""All checks of the audit, and all planted leaks that the checks must detect."""

from collections.abc import Sequence
from itertools import chain

from audit.central import black_box, curator_queries, gaussian_blocks, replay, service_jobs, trees
from audit.checks import randomness
from audit.checks.check import Check, Leak
from audit.devices import bulk, exact, releases
from audit.devices import replay as device_replay
from audit.ledger import accounting, jobs, walks
from audit.ledger import chain as ledger_chain
from audit.mechanisms import exact_channels, sampler_distributions, sampler_draws, shuffled_reports
from audit.plans import plan_checks
from audit.planted import accounting as accounting_leaks
from audit.planted import central as central_leaks
from audit.planted import curator as curator_leaks
from audit.planted import devices as device_leaks
from audit.planted import ledger as ledger_leaks
from audit.planted import mechanisms as mechanism_leaks
from audit.planted import plans as plan_leaks
from audit.planted import releases as release_leaks
from audit.planted import samplers as sampler_leaks
from audit.planted import shuffling as shuffling_leaks

CHECKS: Sequence[Check] = tuple(
    chain.from_iterable(
        module.CHECKS
        for module in (
            randomness,
            exact_channels,
            sampler_distributions,
            sampler_draws,
            shuffled_reports,
            releases,
            exact,
            device_replay,
            bulk,
            plan_checks,
            curator_queries,
            gaussian_blocks,
            trees,
            replay,
            black_box,
            service_jobs,
            accounting,
            walks,
            ledger_chain,
            jobs,
        )
    )
)
LEAKS: Sequence[Leak] = tuple(
    chain.from_iterable(
        planted.LEAKS
        for planted in (
            mechanism_leaks,
            sampler_leaks,
            shuffling_leaks,
            release_leaks,
            device_leaks,
            plan_leaks,
            curator_leaks,
            central_leaks,
            accounting_leaks,
            ledger_leaks,
        )
    )
)
