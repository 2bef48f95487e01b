"""Centroids under local privacy, scored against the true centroids and an information bound."""
