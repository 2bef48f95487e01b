"""Many clients against several gateways and workers on one machine: how long answers take, and whether any is lost."""
