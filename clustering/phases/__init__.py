"""The plan `phase_sketch`: mixtures and centroids from phases of public random projections.

Collected rounds of phases and of centroid statistics enter. A model of centroids leaves.
"""
