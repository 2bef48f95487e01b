"""Checks of central algorithms and their curator.

Algorithms and curators enter. Findings from replays, exact privacy losses and black-box bounds leave.
"""
