"""Aggregation of a closed round's report log into a tally.

Packed reports and a round specification go in. A tally comes out, with the numbers of repeated and malformed reports.
"""
