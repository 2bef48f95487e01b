"""Records of central datasets: encrypted storage, user-bounded loading, and the data keys.

Lattice points and user ids of an upload enter. Points with a bounded number per user leave, for the curator only.
"""
