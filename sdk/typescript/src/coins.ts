/** Random choices with exact probabilities, computed with integers only. */

import { drawBelow, type Entropy } from "./entropy.js";

/** Draw uniformly from 0 .. bound-1. Draws no word if `bound` is 1. */
export function pick(entropy: Entropy, bound: number): number {
  return bound === 1 ? 0 : drawBelow(entropy, bound);
}

/**
 * Return true with probability exp(-a/b), for 0 <= a <= b.
 *
 * Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", algorithm 1. A coin with
 * probability a/(k b) is drawn as one with probability a/b and one with probability 1/k.
 */
export function bernoulliExp(a: number, b: number, entropy: Entropy): boolean {
  let k = 1;
  while (pick(entropy, b) < a && pick(entropy, k) === 0) k += 1;
  return k % 2 === 1;
}
