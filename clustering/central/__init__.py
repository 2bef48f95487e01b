"""Central algorithms: differentially private clustering of records that one trusted party stores.

An algorithm is a function of its parameters, the features and a curator. It reads records only through
charged queries to the curator and returns a cluster model. `run` selects the function.
"""
