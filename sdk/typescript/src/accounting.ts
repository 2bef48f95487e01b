/**
 * What is spent: rules over integers (nano-epsilon), no state.
 *
 * An epsilon is a bigint of nano-epsilon wherever it is stored, added or compared; a decimal
 * number only where a person types or reads it.
 */

import { InvalidSpec } from "./errors.js";

export const NANO = 1_000_000_000n;
const EPSILON_MIN_NANO = 1_000n; // 1e-6
const EPSILON_MAX_NANO = 32n * NANO; // beyond this a report says next to everything
const MAX_TYPED = 64; // characters of a number that comes as text
const MAX_EXPONENT = 400;
const DECIMAL = /^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?$/;

/**
 * Read an epsilon as nano-epsilon, exactly.
 *
 * @param value In [1e-6, 32], at most nine decimals. A number is read as it prints.
 * @throws InvalidSpec Not a number, out of range, or too many decimals.
 */
export function parseEpsilon(value: number | string): bigint {
  const text = String(value);
  const parts = text.length <= MAX_TYPED ? DECIMAL.exec(text) : null;
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

/** Write nano-epsilon as a plain decimal: 1_500_000_000n -> "1.5". */
export function formatEpsilon(nano: bigint): string {
  const rest = (nano % NANO).toString().padStart(9, "0").replace(/0+$/, "");
  return `${nano / NANO}${rest && "."}${rest}`;
}

const BITS = 256n; // of a fixed-point number
const ONE = 1n << BITS;
const SLACK = 1n << 16n; // more than all the roundings below come to

/** 2 atanh(1/3) = ln 2, and 2 atanh(z) in general, for a fixed-point z in [0, 1/3]. */
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
 * The cost of a channel whose largest probability ratio is numerator/denominator (at least 1).
 *
 * @returns The least integer at or above ln(ratio) in nano-epsilon: never under-charges.
 */
export function realisedEpsilon(numerator: bigint, denominator: bigint): bigint {
  if (numerator < denominator) throw new InvalidSpec("a probability ratio lies at or above 1");
  if (numerator === denominator) return 0n;
  let doublings = 0n; // ratio = 2^doublings m, m in [1, 2)
  while (numerator >= denominator << (doublings + 1n)) doublings += 1n;
  const base = denominator << doublings;
  const z = ((numerator - base) * ONE) / (numerator + base);
  const upper = doublings * twiceAtanh(ONE / 3n) + twiceAtanh(z) + SLACK;
  return (upper * NANO + ONE - 1n) / ONE;
}
