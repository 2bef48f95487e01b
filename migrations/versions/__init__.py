"""Revisions of the schema, one module each, in the order of their dates."""
