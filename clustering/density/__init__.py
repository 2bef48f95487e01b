"""Density estimates over grids, their clusters, and the accuracy of both.

Tallies and decoded frequencies enter. Densities, label maps, standard errors and warnings leave.
"""
