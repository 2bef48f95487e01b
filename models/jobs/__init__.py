"""Jobs: submission, claims by workers, charged queries, results, and idempotent requests.

Submissions of analysts and claims of workers enter. Job rows, results and stored responses leave. State changes charge
and release the ledger, open and close rounds, and enqueue webhook deliveries in the same transaction.
"""
