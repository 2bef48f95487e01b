"""Series of windows with one grid: pooled maps, clusters that keep their ids, and tests of change.

Everything here is post-processing of released tallies, so it costs no privacy budget.
"""
