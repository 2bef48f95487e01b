"""Tests of settings, logs, and the signals between processes."""
