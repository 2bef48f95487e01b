/**
 * The only source of randomness on a device: the platform's cryptographic generator.
 *
 * All random choices compare 64-bit words as integers. Tests replay the words of published vectors through the `Entropy`
 * interface. The generator cannot be seeded.
 */

export const WORD_SPAN = 1n << 64n;

const WORDS_PER_CALL = 65536 / 8; // limit of one getRandomValues call

/** A source of uniform, independent 64-bit words. */
export interface Entropy {
  /** Draw `n` words, each uniform in [0, 2^64). */
  words(n: number): BigUint64Array;
}

/** Words from `crypto.getRandomValues`. */
export class SystemEntropy implements Entropy {
  words(n: number): BigUint64Array {
    const words = new BigUint64Array(n);
    for (let at = 0; at < n; at += WORDS_PER_CALL) {
      crypto.getRandomValues(words.subarray(at, at + WORDS_PER_CALL));
    }
    return words;
  }
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
