/**
 * The only source of randomness on a device: the platform's cryptographic generator.
 *
 * All random choices compare 64-bit words as integers. Tests replay the words of published vectors through the `Entropy`
 * interface. The generator cannot be seeded.
 */

import { UnsupportedPlatform } from "./errors.js";

export const WORD_SPAN = 1n << 64n;

const BYTES_PER_CALL = 65536; // limit of one getRandomValues call

/** A source of uniform, independent 64-bit words. */
export interface Entropy {
  /** Draw `n` words, each uniform in [0, 2^64). */
  words(n: number): BigUint64Array;
}

/** Words from `crypto.getRandomValues`. */
export class SystemEntropy implements Entropy {
  words(n: number): BigUint64Array {
    const bytes = new Uint8Array(8 * n); // replacements of getRandomValues refuse arrays of bigint
    for (let at = 0; at < bytes.length; at += BYTES_PER_CALL) fillRandom(bytes.subarray(at, at + BYTES_PER_CALL));
    return new BigUint64Array(bytes.buffer);
  }
}

/** Fill an array with random bytes of the platform. Throw UnsupportedPlatform if it has no cryptographic generator. */
export function fillRandom(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const generator = globalThis.crypto as Crypto | undefined;
  if (typeof generator?.getRandomValues !== "function") {
    throw new UnsupportedPlatform("crypto.getRandomValues is missing: in React Native, import react-native-get-random-values before this package");
  }
  return generator.getRandomValues(bytes);
}

/** Draw one word. */
export function drawWord(entropy: Entropy): bigint {
  const [word] = entropy.words(1);
  if (word === undefined) throw new RangeError("the entropy source returned no word");
  return word;
}

/**
 * Draw uniformly from 0 .. bound-1 by rejection sampling.
 *
 * Divide the range of words into `bound` runs of equal length. Reject a word beyond the last run and draw another.
 */
export function drawBelow(entropy: Entropy, bound: number): number {
  const runs = BigInt(bound);
  const run = WORD_SPAN / runs;
  for (;;) {
    const choice = drawWord(entropy) / run;
    if (choice < runs) return Number(choice);
  }
}
