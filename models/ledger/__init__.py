"""The privacy ledger: grants, reservations, charges and releases of a dataset's budget.

Amounts and references enter, inside the caller's transaction. Entries, balances and verifications leave.
"""
