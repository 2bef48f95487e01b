"""Connections of the gateway and of the shuffler: limits and timeouts of clients, problem documents, standard streams.

It imports neither of the two.
"""
