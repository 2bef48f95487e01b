"""The packages as their users have them: built, installed alone, talking to a running service."""
