"""Local-model rounds: their aggregates, the estimates from them, and the plan interface.

Perturbed reports enter. Tallies, samples and unbiased frequencies leave.
A plan is a generator that yields rounds and receives aggregates.
"""
