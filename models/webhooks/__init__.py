"""Webhooks: receivers of events, their signing secrets, and the queue of deliveries.

Events enter in the transaction that causes them. A sender claims deliveries with their payload and secrets, and reports
the outcome of each attempt.
"""
