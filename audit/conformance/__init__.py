"""Conformance kit: tests of a device in any language, with a service on this machine.

The implementation answers through standard input and output; `docs/conformance.md` states the protocol. The kit
runs the vectors of `openapi/vectors`, the inputs that a device must refuse, and what a device does with its store.
"""
