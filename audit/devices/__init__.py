"""Checks of devices: enumeration of transcripts, replays step by step, and black-box bounds for arrays."""
