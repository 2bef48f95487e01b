"""Analyst's side of the SDK: `Client` and `AsyncClient`, and the resources that their calls return.

Parameters of a call enter; dataclasses of the service's resources leave. The package stands above
`model` and `plotting`, so a result can plot itself.
"""
