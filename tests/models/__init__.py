"""Tests of the tables and of the functions that change them, on both databases."""
