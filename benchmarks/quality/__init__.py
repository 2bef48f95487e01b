"""How well clusters are found: ``python -m benchmarks.quality local --data DIR --out DIR``."""
