"""How fast it is, beside peers and beside what the machine can do: `python -m benchmarks.speed`."""
