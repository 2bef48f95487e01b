/**
 * The only source of randomness on a device: words of the platform's cryptographic generator.
 *
 * Everything random a device does is made of 64-bit words drawn here and compared as
 * integers. The seam is `Entropy`, so that published test vectors can replay words; nothing
 * in this package can be seeded.
 */

export const WORD_SPAN = 1n << 64n;

const WORDS_AT_ONCE = 65536 / 8; // what one call of getRandomValues gives

/** Uniform, independent 64-bit words. */
export interface Entropy {
  /** Draw `n` words, each uniform in [0, 2^64). */
  words(n: number): BigUint64Array;
}

/** Words from `crypto.getRandomValues`. */
export class SystemEntropy implements Entropy {
  words(n: number): BigUint64Array {
    const drawn = new BigUint64Array(n);
    for (let at = 0; at < n; at += WORDS_AT_ONCE) {
      crypto.getRandomValues(drawn.subarray(at, at + WORDS_AT_ONCE));
    }
    return drawn;
  }
}

/** Draw one word. */
export function word(entropy: Entropy): bigint {
  const [drawn] = entropy.words(1);
  if (drawn === undefined) throw new RangeError("the entropy gave no word");
  return drawn;
}

/**
 * Draw uniformly from 0 .. bound-1, exactly: by rejection, without a remainder.
 *
 * The words are cut into `bound` runs of equal length; a word past the last run is drawn again.
 */
export function below(entropy: Entropy, bound: number): number {
  const runs = BigInt(bound);
  const run = WORD_SPAN / runs;
  for (;;) {
    const choice = word(entropy) / run;
    if (choice < runs) return Number(choice);
  }
}
