"""Client connections of the gateway and of the shuffler: limits, timeouts and problem documents.

It imports neither of the two.
"""
