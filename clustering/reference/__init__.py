"""Methods of other people, rebuilt to be measured against: for benchmarks and tests, never for a plan."""
