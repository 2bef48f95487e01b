"""Profiles of clusters: shares of the values of attributes in each cluster, and the values that distinguish it.

`shares` makes counts consistent, `distinctions` tests values, and `reported` computes a profile from reports.
`clustering.central.profile_clusters` computes one from records.
"""
