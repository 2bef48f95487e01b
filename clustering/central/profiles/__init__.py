"""Profiles of clusters: noisy counts of the values of attributes in each cluster, and what follows from them.

`tables` counts, `association` chooses attributes, `shares` makes counts consistent, and `distinctions` tests values.
"""
