"""Records of central datasets: encrypted storage, user-bounded loading, and the data keys.

Lattice points and user ids of an upload enter. Points whose number per user is bounded leave, for the curator only.
"""
