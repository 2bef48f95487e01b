"""Centroids of records under central privacy, scored against k-means without privacy."""
