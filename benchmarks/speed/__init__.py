"""Speed of the product, compared with peers and with limits of the machine: `python -m benchmarks.speed`.

Each group of measurements is a module with a function `rows`. `harness` measures, stores and reports them.
"""
