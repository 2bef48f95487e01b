"""Privacy accounting: costs, Gaussian differential privacy, ledger verification and random words.

Parameters and published ledgers enter; exact costs and verdicts on ledgers leave. The package has no state.
"""
