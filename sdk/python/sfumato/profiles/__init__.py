"""Profiles of released clusters, and their cards as figures."""
