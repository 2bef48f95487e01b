/** Validation of external input. */

import { InvalidSpec } from "./errors.js";

export type Json = Readonly<Record<string, unknown>>;

/** Throw InvalidSpec with the message unless the condition holds. */
export function check(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InvalidSpec(message);
}

/** Return whether a value is a JSON object. */
export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return the value as an integer in least .. most. `name` names the field in errors. */
export function integer(value: unknown, name: string, least: number, most: number): number {
  check(typeof value === "number" && Number.isInteger(value) && value >= least && value <= most, `${name} must be an integer in ${least}..${most}`);
  return value;
}

/** Return the value as a finite number. */
export function finite(value: unknown, name: string): number {
  check(typeof value === "number" && Number.isFinite(value), `${name} must be a finite number`);
  return value;
}

/** Return the value as a text of 1 to 64 characters. */
export function text(value: unknown, name: string): string {
  check(typeof value === "string" && value.length > 0 && value.length <= 64, `${name} must be text of 1 to 64 characters`);
  return value;
}

/** Return the value as one of some texts. */
export function choice(value: unknown, name: string, choices: readonly string[]): string {
  check(typeof value === "string" && choices.includes(value), `${name} must be one of ${choices.join(", ")}`);
  return value;
}

/** Return a 64-bit integer in least .. most, given as a decimal string. */
export function decimalWord(value: unknown, name: string, least: bigint, most: bigint): bigint {
  check(typeof value === "string" && /^[0-9]{1,20}$/.test(value), `${name} must be a decimal string`);
  const word = BigInt(value);
  check(word >= least && word <= most, `${name} must lie in ${least}..${most}`);
  return word;
}

/** Return a list of least .. most items, each converted by `read`. */
export function list<T>(value: unknown, name: string, least: number, most: number, read: (item: unknown) => T): T[] {
  check(Array.isArray(value) && value.length >= least && value.length <= most, `${name} must be a list of ${least} to ${most} items`);
  return value.map(read);
}

/** Throw InvalidSpec if a required field is missing or a field is unknown. */
export function checkKeys(wire: Json, name: string, keys: readonly string[], optional: readonly string[] = []): void {
  const unknown = Object.keys(wire).filter((key) => !keys.includes(key) && !optional.includes(key));
  check(unknown.length === 0, `${name} has unknown fields: ${unknown.sort().join(", ")}`);
  const missing = keys.filter((key) => !Object.hasOwn(wire, key));
  check(missing.length === 0, `${name} lacks the fields: ${missing.join(", ")}`);
}

/** Return an item of a list. The caller guarantees that the index is valid. */
export function at<T>(items: ArrayLike<T>, index: number): T {
  const item = items[index];
  if (item === undefined) throw new RangeError("index out of range");
  return item;
}

/** Return floor(numerator / denominator) for integers with 0 <= numerator < 2^53. */
export function quotient(numerator: number, denominator: number): number {
  return (numerator - (numerator % denominator)) / denominator;
}

/** Return whether an odd number of bits is set in an integer below 2^31. */
export function hasOddParity(value: number): boolean {
  let odd = false;
  for (let left = value; left; left &= left - 1) odd = !odd;
  return odd;
}

/** Encode a non-negative integer as little-endian bytes. */
export function encodeLittleEndian(value: number, width: number): Uint8Array {
  const bytes = new Uint8Array(width);
  for (let place = 0, left = value; place < width; place += 1, left = quotient(left, 256)) bytes[place] = left % 256;
  return bytes;
}

/** Return the number of bytes that an integer below 2^53 needs, at least one. */
export function byteWidth(largest: number): number {
  let width = 1;
  for (let span = 256; largest >= span; span *= 256) width += 1;
  return width;
}
