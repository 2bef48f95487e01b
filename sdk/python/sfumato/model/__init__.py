"""Cluster models that results publish: labels, memberships, separation, tables and posteriors of reports.

Released models and points enter; labels and figures leave. Everything is post-processing without cost.
"""
