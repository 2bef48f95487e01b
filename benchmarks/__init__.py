"""Quality and speed, measured against peers in one run; no part of the test suite."""
