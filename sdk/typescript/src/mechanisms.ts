/**
 * Mechanisms: how a symbol is perturbed, as published, and what a report costs.
 *
 * Each draws the same words in the same order as every other Sfumato device, so that
 * published vectors hold them all to the same bytes. Comments name the words drawn.
 */

import { NANO, realisedEpsilon } from "./accounting.js";
import { at, bytesOf, decimalWord, integer, isOddBits, littleEndian, onlyKeys, check, type Json } from "./checks.js";
import { bernoulliExp, pick } from "./coins.js";
import { MAX_FEATURES, MAX_STEPS, MAX_SYMBOLS, type Symbol } from "./encodings.js";
import { below, word, WORD_SPAN, type Entropy } from "./entropy.js";
import { InvalidSpec } from "./errors.js";

/** How a symbol is perturbed. */
export interface Mechanism {
  readonly type: string;
  /** How many symbols there are; of discrete_laplace, whose symbols are vectors, undefined. */
  readonly nSymbols: number | undefined;
  /** What one report costs: the realised epsilon of the published integers in nano-epsilon, rounded up. */
  readonly epsilonNano: bigint;
  /** Width of a report's value. */
  readonly valueBytes: number;
  /** One device's report value. */
  perturb(symbol: Symbol, entropy: Entropy): Uint8Array;
}

/** discrete_laplace, which goes with the lattice of the same measures. */
export interface LatticeNoise extends Mechanism {
  readonly nFeatures: number;
  readonly steps: number;
}

export function isLatticeNoise(mechanism: Mechanism): mechanism is LatticeNoise {
  return mechanism.type === "discrete_laplace";
}

const MAX_BIT_SYMBOLS = 4096; // subset selection, unary encoding and the window
const MAX_HASH_RANGE = 2 ** 16;
const HASH_SPAN = 2 ** 31;
const HASH_PRIME = HASH_SPAN - 1;

function number(symbol: Symbol, nSymbols: number): number {
  check(typeof symbol === "number" && symbol >= 0 && symbol < nSymbols, "the symbol is out of range");
  return symbol;
}

/** The cost of a channel from one probability ratio, whichever way up it is. */
function costOf(one: bigint, other: bigint): bigint {
  if (one <= 0n || other <= 0n) throw new InvalidSpec("this mechanism gives the symbol away: it has no finite epsilon");
  return one > other ? realisedEpsilon(one, other) : realisedEpsilon(other, one);
}

function threshold(wire: Json, name: string, most: bigint = WORD_SPAN - 1n): bigint {
  return decimalWord(wire[name], name, 1n, most);
}

/** Randomised response's sent symbol. Words drawn: the decision, then the other symbol if needed. */
function respond(symbol: number, nSymbols: number, keep: bigint, entropy: Entropy): number {
  if (word(entropy) < keep) return symbol;
  const other = below(entropy, nSymbols - 1);
  return other + Number(other >= symbol);
}

/** k-ary randomised response: keeps the symbol where a word < keep_threshold. */
function grr(wire: Json): Mechanism {
  onlyKeys(wire, "grr", ["type", "n_symbols", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_SYMBOLS);
  const keep = threshold(wire, "keep_threshold", WORD_SPAN);
  const valueBytes = bytesOf(k - 1);
  return {
    type: "grr",
    nSymbols: k,
    get epsilonNano() {
      return costOf(keep * BigInt(k - 1), WORD_SPAN - keep);
    },
    valueBytes,
    perturb: (symbol, entropy) => littleEndian(respond(number(symbol, k), k, keep, entropy), valueBytes),
  };
}

function setBit(bytes: Uint8Array, index: number): void {
  bytes[index >> 3] = at(bytes, index >> 3) | (1 << (index & 7));
}

function hasBit(bytes: Uint8Array, index: number): boolean {
  return ((at(bytes, index >> 3) >> (index & 7)) & 1) === 1;
}

/**
 * Subset selection: a subset of d symbols that holds the own one where a word < hold_threshold.
 * Words drawn: the decision, then one for each other symbol, by Floyd's sampling.
 */
function ss(wire: Json): Mechanism {
  onlyKeys(wire, "ss", ["type", "n_symbols", "subset_size", "hold_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_BIT_SYMBOLS);
  const d = integer(wire["subset_size"], "subset_size", 1, k - 1);
  const hold = threshold(wire, "hold_threshold");
  const valueBytes = Math.ceil(k / 8);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = number(symbol, k);
    const named = new Uint8Array(valueBytes);
    const held = word(entropy) < hold;
    if (held) setBit(named, own);
    for (let last = k - 1 - (d - Number(held)); last < k - 1; last += 1) {
      const other = below(entropy, last + 1);
      const place = other + Number(other >= own);
      setBit(named, hasBit(named, place) ? last + Number(last >= own) : place);
    }
    return named;
  };
  return {
    type: "ss",
    nSymbols: k,
    get epsilonNano() {
      return costOf(hold * BigInt(k - d), (WORD_SPAN - hold) * BigInt(d));
    },
    valueBytes,
    perturb,
  };
}

/** Unary encoding: the own bit by a fair coin, another where a word < other_threshold. Words drawn: one a symbol. */
function oue(wire: Json): Mechanism {
  onlyKeys(wire, "oue", ["type", "n_symbols", "other_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_BIT_SYMBOLS);
  const other = threshold(wire, "other_threshold");
  const valueBytes = Math.ceil(k / 8);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = number(symbol, k);
    const named = new Uint8Array(valueBytes);
    entropy.words(k).forEach((drawn, index) => {
      if (drawn < (index === own ? WORD_SPAN / 2n : other)) setBit(named, index);
    });
    return named;
  };
  return {
    type: "oue",
    nSymbols: k,
    get epsilonNano() {
      return costOf(WORD_SPAN - other, other);
    },
    valueBytes,
    perturb,
  };
}

/** Local hashing. Words drawn: the public seed a, b, c, then randomised response of the hashed symbol. */
function olh(wire: Json): Mechanism {
  onlyKeys(wire, "olh", ["type", "n_symbols", "hash_range", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_SYMBOLS);
  const g = integer(wire["hash_range"], "hash_range", 2, MAX_HASH_RANGE);
  const keep = threshold(wire, "keep_threshold");
  const sentBytes = bytesOf(g - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const x = number(symbol, k);
    const seed = [below(entropy, HASH_PRIME), below(entropy, HASH_PRIME), below(entropy, HASH_PRIME)] as const;
    const [a, b, c] = seed;
    const mixed = ((((a * x + b) % HASH_PRIME) * x + c) % HASH_PRIME) * g; // every product below 2^53
    const sent = respond(Math.floor(mixed / HASH_SPAN), g, keep, entropy);
    return joined([...seed.map((part) => littleEndian(part, 4)), littleEndian(sent, sentBytes)]);
  };
  return {
    type: "olh",
    nSymbols: k,
    get epsilonNano() {
      return costOf(keep * BigInt(g - 1), WORD_SPAN - keep);
    },
    valueBytes: 12 + sentBytes,
    perturb,
  };
}

/** Hadamard response: the sign of a public Walsh coefficient. Words drawn: the coefficient, then the decision. */
function hr(wire: Json): Mechanism {
  onlyKeys(wire, "hr", ["type", "n_symbols", "keep_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_SYMBOLS);
  const keep = threshold(wire, "keep_threshold");
  let nCoefficients = 2; // the least power of two above k
  while (nCoefficients <= k) nCoefficients *= 2;
  const valueBytes = bytesOf(2 * nCoefficients - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const index = below(entropy, nCoefficients);
    const lies = word(entropy) >= keep;
    const isNegative = isOddBits(index & (number(symbol, k) + 1)) !== lies;
    return littleEndian(2 * index + Number(isNegative), valueBytes);
  };
  return {
    type: "hr",
    nSymbols: k,
    get epsilonNano() {
      return costOf(keep, WORD_SPAN - keep);
    },
    valueBytes,
    perturb,
  };
}

/** The cyclic window. Words drawn: the decision, then the place inside the window or outside. */
function window(wire: Json): Mechanism {
  onlyKeys(wire, "window", ["type", "n_symbols", "window_size", "inside_threshold"]);
  const k = integer(wire["n_symbols"], "n_symbols", 2, MAX_BIT_SYMBOLS);
  const w = integer(wire["window_size"], "window_size", 1, k - 1);
  const inside = threshold(wire, "inside_threshold");
  const valueBytes = bytesOf(k - 1);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    const own = number(symbol, k);
    const offset = word(entropy) < inside ? below(entropy, w) : w + below(entropy, k - w);
    return littleEndian((own + offset - Math.floor(w / 2) + k) % k, valueBytes);
  };
  return {
    type: "window",
    nSymbols: k,
    get epsilonNano() {
      return costOf(inside * BigInt(k - w), (WORD_SPAN - inside) * BigInt(w));
    },
    valueBytes,
    perturb,
  };
}

/** Exact discrete Laplace noise on a lattice's vectors. Words drawn: each feature's noise, the first's first. */
function discreteLaplace(wire: Json): LatticeNoise {
  onlyKeys(wire, "discrete_laplace", ["type", "n_features", "steps", "scale_numerator", "scale_denominator", "margin"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES);
  const steps = integer(wire["steps"], "steps", 1, MAX_STEPS);
  const t = integer(wire["scale_numerator"], "scale_numerator", 0, 2 ** 32);
  const s = integer(wire["scale_denominator"], "scale_denominator", 1, 2 ** 32);
  check(BigInt(t) <= (1n << 26n) * BigInt(s), "the scale is at most 67108864 lattice units");
  const margin = integer(wire["margin"], "margin", 0, 2 ** 30);
  const largest = steps + 2 * margin;
  const width = bytesOf(largest);
  const perturb = (symbol: Symbol, entropy: Entropy) => {
    check(Array.isArray(symbol) && symbol.length === nFeatures, "the vector is out of range");
    check((symbol as readonly number[]).every((place) => place >= 0 && place <= steps), "the vector is out of range");
    const parts = (symbol as readonly number[]).map((place) => {
      const reached = BigInt(place + margin) + noise(t, s, steps + margin, entropy);
      const clamped = reached < 0n ? 0n : reached > BigInt(largest) ? BigInt(largest) : reached;
      return littleEndian(Number(clamped), width);
    });
    return joined(parts);
  };
  return {
    type: "discrete_laplace",
    nSymbols: undefined,
    nFeatures,
    steps,
    get epsilonNano() {
      if (t === 0) throw new InvalidSpec("this mechanism gives the symbol away: it has no finite epsilon");
      const units = BigInt(nFeatures) * BigInt(steps) * BigInt(s) * NANO;
      return (units + BigInt(t) - 1n) / BigInt(t);
    },
    valueBytes: nFeatures * width,
    perturb,
  };
}

/** One draw, P(z) ~ exp(-|z| s/t), exact up to `reach`, past which the clamp hides it (Canonne et al., algorithm 2). */
function noise(t: number, s: number, reach: number, entropy: Entropy): bigint {
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

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/** Every mechanism this version knows, by the tag it travels under. */
export const MECHANISMS: Readonly<Record<string, (wire: Json) => Mechanism>> = {
  grr,
  ss,
  oue,
  olh,
  hr,
  window,
  discrete_laplace: discreteLaplace,
};
