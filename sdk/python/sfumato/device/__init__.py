"""Device's side of the SDK: answers open rounds with perturbed reports.

A record enters; perturbed reports leave. The device computes the cost of each round itself, stores
every report before sending it, and never exceeds the user's cap.
"""
