"""Rounds and the report log: the collection of reports from devices.

Specs of plans and packed reports enter. Open rounds for devices, batches of reports for aggregation, and tallies leave.
"""
