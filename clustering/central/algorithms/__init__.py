"""The central algorithms, one module each, and the grids, weights and steps that they share.

Each takes parameters, features and a curator, and returns a cluster model. The parts of its cost add up
to its epsilon exactly.
"""
