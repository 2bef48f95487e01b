/**
 * Epsilon arithmetic.
 *
 * Amounts are integers in nano-epsilon (10^-9), stored as bigint. Decimal numbers are used only for input and display.
 */

import { InvalidSpec } from "./errors.js";

export const NANO = 1_000_000_000n;
const EPSILON_MIN_NANO = 1_000n; // 1e-6
const EPSILON_MAX_NANO = 32n * NANO; // a larger epsilon gives almost no protection
const MAX_CHARACTERS = 64; // limit for a number given as text
const MAX_EXPONENT = 400;
const DECIMAL = /^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?$/;

/**
 * Parse an epsilon exactly.
 *
 * @param value Epsilon in [1e-6, 32] with at most nine decimals. A `number` is converted to its decimal text first.
 * @returns The epsilon in nano-epsilon.
 * @throws InvalidSpec The value is not a number, is out of range, or has too many decimals.
 */
export function parseEpsilon(value: number | string): bigint {
  const text = String(value);
  const parts = text.length <= MAX_CHARACTERS ? DECIMAL.exec(text) : null;
  const [, sign = "", whole = "", fraction = "", exponent = "0"] = parts ?? [];
  const digits = whole + fraction;
  const shift = Number(exponent) - fraction.length + 9;
  if (digits === "" || Math.abs(shift) > MAX_EXPONENT) throw new InvalidSpec("epsilon must be a number");
  const size = BigInt(digits);
  const scale = 10n ** BigInt(Math.abs(shift));
  const nano = shift >= 0 ? size * scale : size / scale;
  const isWhole = shift >= 0 || size % scale === 0n;
  if (sign === "-" || nano < EPSILON_MIN_NANO || nano > EPSILON_MAX_NANO || (nano === EPSILON_MAX_NANO && !isWhole)) {
    throw new InvalidSpec("epsilon must lie in [0.000001, 32]");
  }
  if (!isWhole) throw new InvalidSpec("epsilon may have at most nine decimals");
  return nano;
}

/** Format nano-epsilon as a plain decimal: 1_500_000_000n becomes "1.5". */
export function formatEpsilon(nano: bigint): string {
  const rest = (nano % NANO).toString().padStart(9, "0").replace(/0+$/, "");
  return `${nano / NANO}${rest && "."}${rest}`;
}

const BITS = 256n; // fraction bits of a fixed-point number
const ONE = 1n << BITS;
const SLACK = 1n << 16n; // upper bound on the sum of all rounding errors below

/** Return 2 atanh(z) for a fixed-point z in [0, 1/3]. For z = 1/3 the result is ln 2. */
function twiceAtanh(z: bigint): bigint {
  const square = (z * z) >> BITS;
  let power = z;
  let sum = 0n;
  for (let odd = 1n; power > 0n; odd += 2n) {
    sum += power / odd;
    power = (power * square) >> BITS;
  }
  return 2n * sum;
}

/**
 * Return the cost of a mechanism with the largest probability ratio numerator/denominator.
 *
 * @returns ln(numerator/denominator) in nano-epsilon, rounded up, so that no cost is too small.
 * @throws InvalidSpec The ratio is below 1.
 */
export function realisedEpsilon(numerator: bigint, denominator: bigint): bigint {
  if (numerator < denominator) throw new InvalidSpec("the probability ratio must be at least 1");
  if (numerator === denominator) return 0n;
  let doublings = 0n; // ratio = 2^doublings * m with m in [1, 2)
  while (numerator >= denominator << (doublings + 1n)) doublings += 1n;
  const base = denominator << doublings;
  const z = ((numerator - base) * ONE) / (numerator + base);
  const upper = doublings * twiceAtanh(ONE / 3n) + twiceAtanh(z) + SLACK;
  return (upper * NANO + ONE - 1n) / ONE;
}
