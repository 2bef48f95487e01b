"""The gateway and the command line.

HTTP requests of devices, analysts and browsers enter; rows of `models` and responses leave. The gateway never imports
`clustering` or numba.
"""
