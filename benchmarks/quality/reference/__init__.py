"""Methods of other authors, rebuilt for comparison. Only benchmarks and tests use them."""
