"""Series: plans of windows, their cycles in the ledger, and the jobs that they begin."""
