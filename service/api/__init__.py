"""The REST API under `/v1`: routes, their dependencies, and the OpenAPI document."""
