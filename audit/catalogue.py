"""All checks of the audit, and all planted leaks that the checks must detect."""

from collections.abc import Sequence
from itertools import chain

from audit.central import (
    black_box,
    curator_queries,
    gaussian_blocks,
    profiles,
    replay,
    service_jobs,
    trees,
    window_records,
)
from audit.checks import randomness
from audit.checks.check import Check, Leak
from audit.devices import bulk, exact, releases
from audit.devices import replay as device_replay
from audit.ledger import accounting, budgets, jobs, walks
from audit.ledger import chain as ledger_chain
from audit.mechanisms import exact_channels, sampler_distributions, sampler_draws, shuffled_reports
from audit.plans import plan_checks
from audit.planted import accounting as accounting_leaks
from audit.planted import budgets as budget_leaks
from audit.planted import central as central_leaks
from audit.planted import curator as curator_leaks
from audit.planted import devices as device_leaks
from audit.planted import ledger as ledger_leaks
from audit.planted import mechanisms as mechanism_leaks
from audit.planted import plans as plan_leaks
from audit.planted import profiles as profile_leaks
from audit.planted import releases as release_leaks
from audit.planted import samplers as sampler_leaks
from audit.planted import shuffling as shuffling_leaks
from audit.planted import window_records as window_leaks

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
            profiles,
            black_box,
            service_jobs,
            window_records,
            accounting,
            budgets,
            walks,
            ledger_chain,
            jobs,
        )
    )
)
# Subjects with a check that takes a second or more of a core in a quick audit. `--fast` leaves them out. Other subjects
# that take as long stay in it, because no other one covers their parts.
SLOW = frozenset(
    (
        "accounting: ratios",
        "adaptive_grid_iterative, 1 feature, paper",
        "adaptive_grid_iterative, 2 features, sound",
        "adaptive_grid_tree, 1 feature, paper",
        "auto, 1 feature",
        "auto, released model",
        "auto, replay",
        "categories, delta, replay",
        "circles, delta, replay",
        "curator: block: products",
        "curator: block: sums",
        "curator: count",
        "curator: halving tree",
        "curator: sizes",
        "curator: sums across features",
        "density_map, cells, replay",
        "density_map, clusters, replay",
        "density_map, released model",
        "density_map, replay",
        "dp_bisecting_kmeans, released model",
        "dp_bisecting_kmeans, synopsis, released model",
        "dp_bisecting_kmeans, synopsis, total_sse, released model",
        "dp_bisecting_kmeans, synopsis, total_sse, replay",
        "dp_bisecting_kmeans, total_sse, released model",
        "dp_density_peaks, released model",
        "dp_kmeans, halving, released model",
        "dp_kmeans, plusplus, halving, released model",
        "dp_kmeans, plusplus, halving, replay",
        "dp_kmeans, plusplus, released model",
        "dp_kmeans, released model",
        "dp_kmeans, subsets, halving, released model",
        "dp_kmeans, subsets, released model",
        "dp_quadtree_kmeans, released model",
        "dp_uniform_grid_kmeans, cells, replay",
        "dp_uniform_grid_kmeans, released model",
        "dp_uniform_grid_kmeans, replay",
        "feature check, replay",
        "ldp_kmeans, 2 features",
        "ledger",
        "ledger: concurrent charges",
        "ledger: jobs",
        "ledger: tampering",
        "noisy_fcm, 2 features",
        "olh in arrays",
        "olh x centroid_sign",
        "olh x grid",
        "olh x nearest_centroid",
        "olh x phase",
        "olh x profile",
        "olh x shifted_grid",
        "olh x tree_grid",
        "oue x nearest_centroid",
        "oue x phase",
        "oue x profile",
        "phase_sketch, 2 features, auto, categories",
        "phase_sketch, 4 features, auto",
        "phase_sketch, 4 features, lloyd",
        "phase_sketch, 4 features, none",
        "phase_sketch, 4 features, sign",
        "private bounds, delta, replay",
        "private_kmeans, delta, grid and rounds, replay",
        "private_kmeans, delta, job replay",
        "private_kmeans, delta, one mean, replay",
        "private_kmeans, delta, released model",
        "private_kmeans, delta, replay",
        "private_kmeans, released model",
        "private_kmeans, replay",
        "private_kmeans, steps, released model",
        "shifted_grid, 2 features",
        "sources of randomness",
        "uniform_grid, 1 feature, paper",
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
            profile_leaks,
            window_leaks,
            accounting_leaks,
            budget_leaks,
            ledger_leaks,
        )
    )
)
