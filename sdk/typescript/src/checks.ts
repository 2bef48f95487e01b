/** Checks of what comes from outside. */

import { InvalidSpec } from "./errors.js";

export type Json = Readonly<Record<string, unknown>>;

export function check(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InvalidSpec(message);
}

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An integer in least .. most. */
export function integer(value: unknown, what: string, least: number, most: number): number {
  check(typeof value === "number" && Number.isInteger(value) && value >= least && value <= most, `${what} lies in ${least}..${most}`);
  return value;
}

export function finite(value: unknown, what: string): number {
  check(typeof value === "number" && Number.isFinite(value), `${what} must be a finite number`);
  return value;
}

/** A 64-bit integer, which travels as a decimal string. */
export function decimalWord(value: unknown, what: string, least: bigint, most: bigint): bigint {
  check(typeof value === "string" && /^[0-9]{1,20}$/.test(value), `${what} is a decimal string`);
  const read = BigInt(value);
  check(read >= least && read <= most, `${what} lies in ${least}..${most}`);
  return read;
}

/** A list of least .. most items, each read by `read`. */
export function list<T>(value: unknown, what: string, least: number, most: number, read: (item: unknown) => T): T[] {
  check(Array.isArray(value) && value.length >= least && value.length <= most, `${what} is a list of ${least} to ${most}`);
  return value.map(read);
}

/** Refuse what this version does not know, and what lacks. */
export function onlyKeys(wire: Json, what: string, keys: readonly string[], optional: readonly string[] = []): void {
  const unknown = Object.keys(wire).filter((key) => !keys.includes(key) && !optional.includes(key));
  check(unknown.length === 0, `${what}: unknown ${unknown.sort().join(", ")}`);
  check(keys.every((key) => Object.hasOwn(wire, key)), `${what}: a field is missing`);
}

/** An item that the caller knows to be there. */
export function at<T>(items: ArrayLike<T>, index: number): T {
  const item = items[index];
  if (item === undefined) throw new RangeError("an index out of range");
  return item;
}

/** floor(numerator / denominator), both whole, 0 <= numerator < 2^53. */
export function quotient(numerator: number, denominator: number): number {
  return (numerator - (numerator % denominator)) / denominator;
}

/** Whether an odd number of bits is set in a whole number below 2^31. */
export function isOddBits(value: number): boolean {
  let odd = false;
  for (let left = value; left; left &= left - 1) odd = !odd;
  return odd;
}

/** A whole number as little-endian bytes. */
export function littleEndian(value: number, width: number): Uint8Array {
  const bytes = new Uint8Array(width);
  for (let place = 0, left = value; place < width; place += 1, left = quotient(left, 256)) bytes[place] = left % 256;
  return bytes;
}

/** How many whole bytes a value below 2^53 needs, at least one. */
export function bytesOf(largest: number): number {
  let width = 1;
  for (let span = 256; largest >= span; span *= 256) width += 1;
  return width;
}
