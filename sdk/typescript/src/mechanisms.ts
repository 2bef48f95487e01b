/**
 * Mechanisms: the randomised functions that perturb a symbol, and the cost of a report.
 *
 * All Sfumato SDKs draw the same random words in the same order, so the published vectors fix every byte of a report. The
 * comments list the words in the order of drawing.
 */

import { NANO, realisedEpsilon } from "./accounting.js";
import { at, byteWidth, check, checkKeys, decimalWord, encodeLittleEndian, hasOddParity, integer, type Json } from "./checks.js";
import { bernoulliExp, pick } from "./coins.js";
import { MAX_FEATURES, MAX_STEPS, MAX_SYMBOLS, type Symbol } from "./encodings.js";
import { drawBelow, drawWord, WORD_SPAN, type Entropy } from "./entropy.js";
import { InvalidSpec } from "./errors.js";

/** A randomised function that perturbs a symbol. */
export interface Mechanism {
  readonly type: string;
  /** Number of symbols, or undefined for discrete_laplace, where symbols are vectors. */
  readonly nSymbols: number | undefined;
  /** Cost of one report: the realised epsilon of the published thresholds in nano-epsilon, rounded up. */
  readonly epsilonNano: bigint;
  /** Length of the value of a report in bytes. */
  readonly valueBytes: number;
  /** Return the perturbed value of a report. */
  perturb(symbol: Symbol, entropy: Entropy): Uint8Array;
}

/** The mechanism discrete_laplace, for a lattice with the same number of features and steps. */
export interface LatticeNoise extends Mechanism {
  readonly nFeatures: number;
  readonly steps: number;
  /** Last number of the vector of a record outside of the bounds, or 0 if vectors have no such number. */
  readonly mark: number;
}

/** Return whether a mechanism is discrete_laplace. */
export function isLatticeNoise(mechanism: Mechanism): mechanism is LatticeNoise {
  return mechanism.type === "discrete_laplace";
}

const MAX_BIT_SYMBOLS = 4097; // limit for subset selection and unary encoding: 4096 cells and the symbol outside
const MAX_RESPONSE_SYMBOLS = MAX_SYMBOLS + 1;
const MAX_WINDOW_SYMBOLS = 4096;
const MAX_HASH_RANGE = 2 ** 16;
const HASH_SPAN = 2 ** 31;
const HASH_PRIME = HASH_SPAN - 1;

/** Return the symbol as a number. Throw InvalidSpec if it is out of range. */
function readSymbol(symbol: Symbol, nSymbols: number): number {
  check(typeof symbol === "number" && symbol >= 0 && symbol < nSymbols, "the symbol must be in 0 .. n_symbols-1");
  return symbol;
}

/** Return the cost of a mechanism from the two sides of its largest probability ratio, in any order. */
function computeCost(one: bigint, other: bigint): bigint {
  if (one <= 0n || other <= 0n) throw new InvalidSpec("the mechanism does not hide the symbol: its epsilon is infinite");
  return one > other ? realisedEpsilon(one, other) : realisedEpsilon(other, one);
}

/** Read a probability threshold. */
function readThreshold(wire: Json, name: string, most: bigint = WORD_SPAN - 1n): bigint {
  return decimalWord(wire[name], name, 1n, most);
}

/** Apply randomised response to a symbol. Words: the decision, then the other symbol if needed. */
function respond(symbol: number, nSymbols: number, keep: bigint, entropy: Entropy): number {
  if (drawWord(entropy) < keep) return symbol;
  const other = drawBelow(entropy, nSymbols - 1);
  return other + Number(other >= symbol);
}

/** Read k-ary randomised response, which keeps the symbol if a word is below keep_threshold. */
function readGrr(wire: Json): Mechanism {
  checkKeys(wire, "grr", ["type", "n_symbols", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_RESPONSE_SYMBOLS);
  const keep = readThreshold(wire, "keep_threshold", WORD_SPAN);
  const valueBytes = byteWidth(k - 1);
  return {
    type: "grr",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(keep * BigInt(k - 1), WORD_SPAN - keep);
    },
    valueBytes,
    perturb: (symbol, entropy) => encodeLittleEndian(respond(readSymbol(symbol, k), k, keep, entropy), valueBytes),
  };
}

function setBit(bytes: Uint8Array, index: number): void {
  bytes[index >> 3] = at(bytes, index >> 3) | (1 << (index & 7));
}

function hasBit(bytes: Uint8Array, index: number): boolean {
  return ((at(bytes, index >> 3) >> (index & 7)) & 1) === 1;
}

/**
 * Read subset selection. The value is a subset of d symbols, which contains the true symbol if a word is below
 * hold_threshold. Words: the decision, then one for each other symbol of the subset (Floyd's sampling).
 */
function readSs(wire: Json): Mechanism {
  checkKeys(wire, "ss", ["type", "n_symbols", "subset_size", "hold_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_BIT_SYMBOLS);
  const d = integer(wire["subset_size"], "subset_size", 1, k - 1);
  const hold = readThreshold(wire, "hold_threshold");
  const valueBytes = Math.ceil(k / 8);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = readSymbol(symbol, k);
    const subset = new Uint8Array(valueBytes);
    const hasOwn = drawWord(entropy) < hold;
    if (hasOwn) setBit(subset, own);
    for (let last = k - 1 - (d - Number(hasOwn)); last < k - 1; last += 1) {
      const other = drawBelow(entropy, last + 1);
      const index = other + Number(other >= own);
      setBit(subset, hasBit(subset, index) ? last + Number(last >= own) : index);
    }
    return subset;
  };
  return {
    type: "ss",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(hold * BigInt(k - d), (WORD_SPAN - hold) * BigInt(d));
    },
    valueBytes,
    perturb,
  };
}

/**
 * Read unary encoding. The bit of the true symbol is a fair coin. Each other bit is 1 if a word is below other_threshold.
 * Words: one per symbol.
 */
function readOue(wire: Json): Mechanism {
  checkKeys(wire, "oue", ["type", "n_symbols", "other_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_BIT_SYMBOLS);
  const other = readThreshold(wire, "other_threshold");
  const valueBytes = Math.ceil(k / 8);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = readSymbol(symbol, k);
    const bits = new Uint8Array(valueBytes);
    entropy.words(k).forEach((word, index) => {
      if (word < (index === own ? WORD_SPAN / 2n : other)) setBit(bits, index);
    });
    return bits;
  };
  return {
    type: "oue",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(WORD_SPAN - other, other);
    },
    valueBytes,
    perturb,
  };
}

/** Read local hashing. Words: the public seed a, b, c, then randomised response on the hashed symbol. */
function readOlh(wire: Json): Mechanism {
  checkKeys(wire, "olh", ["type", "n_symbols", "hash_range", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_RESPONSE_SYMBOLS);
  const g = integer(wire["hash_range"], "hash_range", 2, MAX_HASH_RANGE);
  const keep = readThreshold(wire, "keep_threshold");
  const responseBytes = byteWidth(g - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const x = readSymbol(symbol, k);
    const seed = [drawBelow(entropy, HASH_PRIME), drawBelow(entropy, HASH_PRIME), drawBelow(entropy, HASH_PRIME)] as const;
    const [a, b, c] = seed;
    const mixed = ((((a * x + b) % HASH_PRIME) * x + c) % HASH_PRIME) * g; // each product is below 2^53, so exact
    const response = respond(Math.floor(mixed / HASH_SPAN), g, keep, entropy);
    return concatenate([...seed.map((part) => encodeLittleEndian(part, 4)), encodeLittleEndian(response, responseBytes)]);
  };
  return {
    type: "olh",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(keep * BigInt(g - 1), WORD_SPAN - keep);
    },
    valueBytes: 12 + responseBytes,
    perturb,
  };
}

/** Read Hadamard response: the sign of a public Walsh coefficient. Words: the coefficient, then the decision. */
function readHr(wire: Json): Mechanism {
  checkKeys(wire, "hr", ["type", "n_symbols", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_RESPONSE_SYMBOLS);
  const keep = readThreshold(wire, "keep_threshold");
  let nCoefficients = 2; // smallest power of two above k
  while (nCoefficients <= k) nCoefficients *= 2;
  const valueBytes = byteWidth(2 * nCoefficients - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const index = drawBelow(entropy, nCoefficients);
    const isFlipped = drawWord(entropy) >= keep;
    const isNegative = hasOddParity(index & (readSymbol(symbol, k) + 1)) !== isFlipped;
    return encodeLittleEndian(2 * index + Number(isNegative), valueBytes);
  };
  return {
    type: "hr",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(keep, WORD_SPAN - keep);
    },
    valueBytes,
    perturb,
  };
}

/** Read the cyclic window. Words: the decision, then the position inside or outside the window. */
function readWindow(wire: Json): Mechanism {
  checkKeys(wire, "window", ["type", "n_symbols", "window_size", "inside_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_WINDOW_SYMBOLS);
  const w = integer(wire["window_size"], "window_size", 1, k - 1);
  const inside = readThreshold(wire, "inside_threshold");
  const valueBytes = byteWidth(k - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = readSymbol(symbol, k);
    const offset = drawWord(entropy) < inside ? drawBelow(entropy, w) : w + drawBelow(entropy, k - w);
    return encodeLittleEndian((own + offset - Math.floor(w / 2) + k) % k, valueBytes);
  };
  return {
    type: "window",
    nSymbols: k,
    get epsilonNano() {
      return computeCost(inside * BigInt(k - w), (WORD_SPAN - inside) * BigInt(w));
    },
    valueBytes,
    perturb,
  };
}

/** Read exact discrete Laplace noise for the vectors of a lattice. Words: the noise of each number in order. */
function readDiscreteLaplace(wire: Json): LatticeNoise {
  checkKeys(wire, "discrete_laplace", ["type", "n_features", "steps", "scale_numerator", "scale_denominator", "margin"], ["mark"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES);
  const steps = integer(wire["steps"], "steps", 1, MAX_STEPS);
  const t = integer(wire["scale_numerator"], "scale_numerator", 0, 2 ** 32);
  const s = integer(wire["scale_denominator"], "scale_denominator", 1, 2 ** 32);
  check(BigInt(t) <= (1n << 26n) * BigInt(s), "the scale may be at most 67108864 lattice units");
  const margin = integer(wire["margin"], "margin", 0, 2 ** 30);
  const { mark: given = 0 } = wire;
  const mark = integer(given, "mark", 0, nFeatures * Math.floor(steps / 2)); // so it adds nothing to the cost
  const nNumbers = nFeatures + Number(mark > 0);
  const reach = Math.max(steps, mark);
  const largest = reach + 2 * margin;
  const width = byteWidth(largest);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    check(Array.isArray(symbol) && symbol.length === nNumbers, "the vector must have n_features coordinates, and a mark if there is one");
    check((symbol as readonly number[]).every((coordinate) => coordinate >= 0 && coordinate <= reach), "coordinates of the vector must be in 0 .. steps");
    const parts = (symbol as readonly number[]).map((coordinate) => {
      const noisy = BigInt(coordinate + margin) + drawNoise(t, s, reach + margin, entropy);
      const clamped = noisy < 0n ? 0n : noisy > BigInt(largest) ? BigInt(largest) : noisy;
      return encodeLittleEndian(Number(clamped), width);
    });
    return concatenate(parts);
  };
  return {
    type: "discrete_laplace",
    nSymbols: undefined,
    nFeatures,
    steps,
    mark,
    get epsilonNano() {
      if (t === 0) throw new InvalidSpec("the mechanism does not hide the symbol: its epsilon is infinite");
      const units = BigInt(nFeatures) * BigInt(steps) * BigInt(s) * NANO;
      return (units + BigInt(t) - 1n) / BigInt(t);
    },
    valueBytes: nNumbers * width,
    perturb,
  };
}

/**
 * Draw discrete Laplace noise z with probability proportional to exp(-|z| s/t).
 *
 * The draw is exact for |z| up to `reach`. Larger values are clamped by the caller, so their exact size does not matter.
 * Source: Canonne, Kamath and Steinke 2020, algorithm 2.
 */
function drawNoise(t: number, s: number, reach: number, entropy: Entropy): bigint {
  if (t === 0) return 0n;
  const scale = BigInt(t);
  const mostTurns = (BigInt(reach) * BigInt(s) + scale - 1n) / scale;
  for (;;) {
    const part = pick(entropy, t);
    if (!bernoulliExp(part, t, entropy)) continue;
    let turns = 0n;
    while (turns < mostTurns && bernoulliExp(1, 1, entropy)) turns += 1n;
    const size = (BigInt(part) + scale * turns) / BigInt(s);
    const isNegative = pick(entropy, 2) === 1;
    if (size > 0n || !isNegative) return isNegative ? -size : size;
  }
}

function concatenate(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let start = 0;
  for (const part of parts) {
    whole.set(part, start);
    start += part.length;
  }
  return whole;
}

/** Readers of the mechanisms, by their `type` in JSON. */
export const MECHANISMS: Readonly<Record<string, (wire: Json) => Mechanism>> = {
  grr: readGrr,
  ss: readSs,
  oue: readOue,
  olh: readOlh,
  hr: readHr,
  window: readWindow,
  discrete_laplace: readDiscreteLaplace,
};
