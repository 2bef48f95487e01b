"""PrivTree over the lattice: cells are halved, features in turn, where noise and a decay leave more than nothing.

Zhang, Xiao and Xie 2016, "PrivTree: a differentially private algorithm for hierarchical
decompositions", algorithm 2, with two children (beta = 2) and threshold theta = 0, in whole
numbers. The decisions alone are published; how many records a node holds is not.

A node v at depth h(v) with c(v) records is split where b(v) + Z > 0, with

    b(v) = max(-D, c(v) - D h(v)),   P(Z = z) proportional to r^|z|,   r = e^(-1/s),

D whole and r^D <= 1/2. For one record, present or absent, this costs 3/s of pure epsilon
(their theorem 3.1, whose tail argument for Laplace noise holds for the geometric tail):

- Whoever lacks the record has c(v) less by one on the nodes of one path from the root, and
  equal elsewhere. Other decisions have equal chances, and so have those of the path once both
  b(v) are at the floor -D. Let rho(x) = ln P(x + Z > 0) - ln P(x - 1 + Z > 0). A split on the
  path weighs at most rho(b(v)) >= 0; the leaf that ends it between -1/s and 0. So in one
  direction the loss is at most 1/s; in the other it is the sum of rho over the path's splits.
- A shift of Z by one changes no probability by more than e^(1/s): rho(x) <= 1/s for all x.
- For x >= 1, P(x + Z > 0) = 1 - a r^x with a = 1/(1 + r). By -ln(1 - y) = sum over i of y^i/i,
  rho(x) = sum of (a^i/i) (r^(i(x-1)) - r^(ix)) = sum of r^(i(x-1)) (a^i/i) (1 - r^i)
  <= r^(x-1) rho(1) <= r^(x-1)/s.
- Let x(v) = c(v) - D h(v), which falls by D or more from node to node of the path. Being
  whole, on the last node with x(v) > -D it is at least 1 - D, on the one before at least 1, and
  i before that at least 1 + i D. The first of them weighs at most 1/s, the others at
  most r^(i D)/s <= 2^-i/s. The sum is below (1 + 1 + 1/2 + 1/4 + ...)/s = 3/s. Nodes further
  down are at the floor with the record or without it.

The last step is why D and the noise are whole numbers of records: with finer ones a node could
lie less than one record above the floor. A limit of depth or of nodes is a function of earlier
decisions: nodes beyond it are not asked, and weigh nothing. A user who holds up to B records is
hidden by s = 3 B / epsilon: B times the loss of one record.
"""

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from clustering.central.box_tree import BoxTree, halve, whole_box
from clustering.kernels.halving_tree import descend
from clustering.noise import discrete_laplace, representable
from sfumato.entropy import Entropy
from sfumato.specs import LATTICE

MAX_DEPTH = 60  # halvings from the box to a cell, at most all that the lattice allows
MAX_NODES = (1 << 16) - 1

LN_2 = Fraction(6_931_471_806, 10**10)  # from above

_BITS = LATTICE.bit_length() - 1  # halvings of one feature


def tree_of(is_split: NDArray[np.int64], n_features: int) -> BoxTree:
    """The boxes that decisions leave.

    Parameters
    ----------
    is_split : ndarray of shape (n_nodes,), int64
        1 where a node was split, else 0: nodes level by level, halves next to each other in the
        order of their parents, the root first. What `grown` gives.
    n_features : int
    """
    tree = whole_box(n_features)
    start, end, depth = 0, 1, 0
    while start < end:
        parents = start + np.flatnonzero(is_split[start:end])
        tree = halve(tree, parents, depth % n_features)
        start, end, depth = end, end + 2 * len(parents), depth + 1
    return tree


def decay_of(scale: Fraction) -> int:
    """D: the least whole number with r^D <= 1/2 for noise of this scale, or the next."""
    t, s = representable(scale)
    return ceil(Fraction(t, s) * LN_2)


def grown(points: NDArray[np.int32], scale: Fraction, entropy: Entropy) -> NDArray[np.int64]:
    """Decide which nodes are split: for the curator alone, after the charge.

    Parameters
    ----------
    points : ndarray of shape (n, d), int32
        Lattice places.
    scale : Fraction
        s = 3 B / epsilon; see the head of this file.
    entropy : Entropy

    Returns
    -------
    ndarray of shape (n_nodes,), int64
        1 where a node is split, else 0; see `tree_of`.
    """
    n, d = points.shape
    decay = decay_of(scale)
    nodes = np.zeros(n, dtype=np.int32)
    counts = np.zeros(MAX_NODES, dtype=np.int64)
    counts[0] = n
    first_child = np.full(MAX_NODES, -1, dtype=np.int64)
    is_split = np.zeros(MAX_NODES, dtype=np.bool_)
    start, end = 0, 1  # of the level
    for depth in range(min(MAX_DEPTH, d * _BITS)):
        biased = np.maximum(-decay, counts[start:end] - decay * depth)
        wanted = biased + discrete_laplace(scale, end - start, entropy) > 0
        wanted &= np.cumsum(wanted) <= (MAX_NODES - end) // 2
        is_split[start:end] = wanted
        n_children = 2 * int(wanted.sum())
        first_child[start:end][wanted] = end + np.arange(0, n_children, 2)
        if n_children == 0:
            break
        descend(points, nodes, first_child, depth % d, _BITS - 1 - depth // d, counts)
        start, end = end, end + n_children
    return is_split[:end].astype(np.int64)
