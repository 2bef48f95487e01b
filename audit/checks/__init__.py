"""Common parts of all checks: findings, lower bounds, neighbouring datasets, and the search for randomness."""
