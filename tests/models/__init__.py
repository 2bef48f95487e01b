"""Tests of the tables and their state changes, on both databases where the database matters."""
