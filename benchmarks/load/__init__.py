"""Many clients against several gateways and workers on one machine: response times and lost reports."""
