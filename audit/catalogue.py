"""Everything the audit looks at, and every leak it must catch."""

from collections.abc import Sequence
from itertools import chain

from audit import (
    accounting,
    central,
    central_blackbox,
    central_service,
    curator,
    curator_block,
    curator_tree,
    device_bulk,
    device_exact,
    device_replay,
    exact_arrays,
    exact_mechanisms,
    ledger,
    ledger_chain,
    ledger_jobs,
    plans,
    randomness,
    sampler_draws,
    sampler_laws,
)
from audit.check import Check, Leak
from audit.planted import accounting as accounting_leaks
from audit.planted import central as central_leaks
from audit.planted import curator as curator_leaks
from audit.planted import devices as device_leaks
from audit.planted import ledger as ledger_leaks
from audit.planted import mechanisms as mechanism_leaks
from audit.planted import plans as plan_leaks
from audit.planted import samplers as sampler_leaks

CHECKS: Sequence[Check] = tuple(
    chain.from_iterable(
        looked_at.CHECKS
        for looked_at in (
            randomness,
            exact_mechanisms,
            exact_arrays,
            sampler_laws,
            sampler_draws,
            device_exact,
            device_replay,
            device_bulk,
            plans,
            curator,
            curator_block,
            curator_tree,
            central,
            central_blackbox,
            central_service,
            accounting,
            ledger,
            ledger_chain,
            ledger_jobs,
        )
    )
)
LEAKS: Sequence[Leak] = tuple(
    chain.from_iterable(
        planted.LEAKS
        for planted in (
            mechanism_leaks,
            sampler_leaks,
            device_leaks,
            plan_leaks,
            curator_leaks,
            central_leaks,
            accounting_leaks,
            ledger_leaks,
        )
    )
)
