"""HTTP exchange with the service.

The steps of a call enter as a generator of requests; the return value of the call leaves. Only
`http` does input and output, either blocking or asynchronous.
"""
