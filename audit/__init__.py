"""The audit: what the service says of its privacy, checked by machinery that is shown to catch leaks."""
