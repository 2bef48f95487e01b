"""Pydantic models of requests and responses, and the conversion of table rows to them."""
