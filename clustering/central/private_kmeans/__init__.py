"""`private_kmeans`: private k-means over records, by a route that suits epsilon, delta and the features.

Parameters and a curator enter; a centroid model leaves. All functions see query answers only.
"""
