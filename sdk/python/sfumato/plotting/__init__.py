"""Plots of a cluster model.

A `ClusterModel` and public outlines enter; a matplotlib figure, an SVG document or a PNG file leaves.
The package uses no records or reports, and loads matplotlib when the first plot is drawn.
"""
