/**
 * Coins and choices of exact probability, made of integers alone.
 *
 * The coin of probability exp(-a/b) is that of Canonne, Kamath and Steinke 2020 ("The discrete
 * Gaussian for differential privacy", algorithm 1).
 */

import { below, type Entropy } from "./entropy.js";

/** Uniform in 0 .. bound-1; where there is one choice no word is drawn. */
export function pick(entropy: Entropy, bound: number): number {
  return bound === 1 ? 0 : below(entropy, bound);
}

/** A coin of probability exp(-a/b), 0 <= a <= b: the k-th coin of a/(k b) is one of a/b and one of 1/k. */
export function bernoulliExp(a: number, b: number, entropy: Entropy): boolean {
  let k = 1;
  while (pick(entropy, b) < a && pick(entropy, k) === 0) k += 1;
  return k % 2 === 1;
}
