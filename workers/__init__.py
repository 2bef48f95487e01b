"""Workers aggregate reports and run jobs.

A worker reads jobs, closed rounds and encrypted records from the database. It writes tallies, results, ledger charges
and query answers back. A supervisor process claims the work, and a job process computes it.
"""
