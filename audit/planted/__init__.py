"""Broken variants, each a small change of something sound; none is reachable from the service."""
