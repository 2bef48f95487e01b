"""Tests of the built SDK packages in new environments against a running service."""
