"""Tenants, keys, console sessions, quotas, and the audit trail of administrative actions.

Secrets and session tokens enter, and a `Caller` with its tenant and scopes leaves. Every other package of `models`
checks access with a `Caller`.
"""
