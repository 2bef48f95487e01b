"""Tests of every room, laid out as the source is."""
