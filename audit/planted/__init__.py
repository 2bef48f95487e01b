"""Broken variants of audited code, each with one small fault. The service cannot reach them."""
