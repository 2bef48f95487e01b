"""Plans that estimate label maps from grid rounds: uniform, adaptive and shifted grids.

Collected rounds enter. A label-map model with densities, sizes and errors leaves.
The variant `paper` of a plan follows Zhang et al. 2023 as printed.
"""
