"""Local algorithms that estimate centroids, and the k-means and fuzzy c-means fits behind them.

They take collected rounds of device reports, or weighted points, and return cluster models or centres.
"""
