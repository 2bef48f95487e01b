"""The web console: pages over the API of the gateway, loaded at the first request."""

PATH = "/console"  # path of the URLs
