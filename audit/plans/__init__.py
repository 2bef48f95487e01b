"""Checks of local plans: transcripts of devices over all rounds, declared costs, and replays of rounds."""
