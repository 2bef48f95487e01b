"""Clusterings under local privacy: data sets of any shape, scored against their labels."""
