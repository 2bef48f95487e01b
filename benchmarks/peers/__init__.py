"""Other libraries, in a Python process with an environment of their own.

A benchmark sends arrays and calls the functions of `peer_functions`, which import nothing of this project.
"""
