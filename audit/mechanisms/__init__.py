"""Checks of mechanisms and samplers by exact enumeration on symbolic words, and of samplers by samples."""
