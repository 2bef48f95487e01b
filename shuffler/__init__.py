"""The shuffler of the trust model `shuffled`: collects sealed reports, and releases each round once, in random order.

An organisation other than the service's operator runs it: `sfumato shuffler`. It knows senders and cannot open reports.
It imports nothing of the service.
"""
