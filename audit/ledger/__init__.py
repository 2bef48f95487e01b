"""Checks of charges and of the ledger.

Cost functions, charges of jobs and hash chains enter. Findings from comparisons with plain references leave.
"""
