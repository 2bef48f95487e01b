"""Names of mechanisms and trust models, in a module that loads nothing: the command line needs them at its start."""

from typing import Literal

# `auto` selects a mechanism. `sfumato.mechanisms` checks that the others are its classes.
MechanismKind = Literal["auto", "grr", "ss", "oue", "olh", "hr", "window"]
TrustModel = Literal["local", "shuffled", "central"]
