"""Central algorithms: one function of a curator each, and what they share."""
