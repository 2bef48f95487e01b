"""Delivery of webhooks: the rules for URLs and addresses, one signed attempt, and the sender thread of a gateway.

Due deliveries enter from the database. Signed requests leave to receivers, and outcomes return to the database.
"""
