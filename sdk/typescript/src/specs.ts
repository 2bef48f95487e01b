/** Round specs and records. A spec contains everything that a device needs to send a report. All devices receive the same bytes. */

import type { Attribute } from "./attributes.js";
import { check, checkKeys, choice, decimalWord, finite, isObject, list, text, type Json } from "./checks.js";
import { addsSymbol, ENCODINGS, isLattice, MAX_FEATURES, type Encoding, type Symbol } from "./encodings.js";
import { drawBelow, WORD_SPAN, type Entropy } from "./entropy.js";
import { InvalidPoint } from "./errors.js";
import { isLatticeNoise, MECHANISMS, type Mechanism } from "./mechanisms.js";
import { readProfile } from "./profiles.js";

export const SPEC_VERSION = 1;

/** A feature of a record with its public bounds, in the unit of the feature. */
export interface Feature {
  readonly name: string;
  readonly lower: number;
  readonly upper: number;
  readonly unit?: string;
  /** Whether the values lie on a circle, as longitudes and hours of the day. The bounds are one period. */
  readonly periodic?: boolean;
  /**
   * The part of a place on Earth that the feature is, in degrees. A latitude is scaled by its sine, and a longitude is
   * moved by whole turns towards the bounds.
   */
  readonly coordinate?: Coordinate | undefined;
}

export type Coordinate = "longitude" | "latitude";

/** A feature as read: all members are present. */
export interface ReadFeature extends Required<Omit<Feature, "coordinate">> {
  readonly coordinate: Coordinate | undefined;
}

/** A position of the browser (`GeolocationPosition`) or of another library with `coords`, in degrees. */
export interface Position {
  readonly coords: { readonly latitude: number; readonly longitude: number };
}

/**
 * The values of a record in the units of the features: in the order of the features, by feature name, or a position.
 *
 * A record by name also has the values of the attributes that the device reports: text, numbers, or null for a missing value.
 *
 * A position is for datasets of one latitude and one longitude, declared as such or with a name of `LATITUDES` and of
 * `LONGITUDES`. A longitude
 * outside of the bounds is turned by 360 degrees if it is inside of them afterwards, as 179 west in bounds from 170 to 190.
 */
export type PersonRecord = readonly number[] | Readonly<Record<string, number | string | null>> | Position;

export const LATITUDES: readonly string[] = ["latitude", "lat"];
export const LONGITUDES: readonly string[] = ["longitude", "lon", "lng", "long"];

/** The participation interval [lo, hi) of a round. A device answers if its secret 64-bit participation draw lies in it. */
export interface Participation {
  readonly lo: bigint;
  readonly hi: bigint;
}

/** The published description of a round. */
export interface RoundSpec {
  readonly features: readonly ReadFeature[];
  readonly encoding: Encoding;
  readonly mechanism: Mechanism;
  readonly participation: Participation;
  /** Whether a record outside of the bounds is reported as outside. Otherwise its values are moved to the bounds. */
  readonly countsOutside: boolean;
}

/** The result of `Device.check` for a valid record. */
export interface RecordCheck {
  /** Names of the features whose value lies outside their bounds. */
  readonly outside: readonly string[];
}

/** The public slot and the perturbed value of a report. */
export interface PerturbedValue {
  readonly slot: number;
  readonly value: Uint8Array;
}

/**
 * Validate a round spec.
 *
 * @param wire The spec as received in JSON.
 * @throws InvalidSpec The spec is invalid, or this version does not support it.
 */
export function readRoundSpec(wire: unknown): RoundSpec {
  check(isObject(wire), "a round spec must be an object");
  check(wire["version"] === SPEC_VERSION, `unsupported version of a round spec: expected ${SPEC_VERSION}`);
  checkKeys(wire, "RoundSpec", ["version", "features", "encoding", "mechanism", "participation"], ["out_of_bounds"]);
  const features = list(wire["features"], "features", 1, MAX_FEATURES, readFeature);
  check(new Set(features.map((feature) => feature.name)).size === features.length, "feature names must be different");
  const encoding = readTagged({ ...ENCODINGS, profile: readProfile }, "encoding", wire["encoding"]);
  const mechanism = readTagged(MECHANISMS, "mechanism", wire["mechanism"]);
  check(features.length === encoding.nFeatures, "the number of features of the encoding must match the spec");
  const circles = features.flatMap(({ periodic }, index) => (periodic ? [index] : []));
  const isSuited = encoding.suits?.(circles) ?? circles.length === 0;
  check(isSuited, "the encoding must suit the periodic features");
  checkAttributes(features, encoding);
  if (isLattice(encoding) || isLatticeNoise(mechanism)) {
    const same = isLattice(encoding) && isLatticeNoise(mechanism) && encoding.nFeatures === mechanism.nFeatures && encoding.steps === mechanism.steps;
    check(same, "a lattice and discrete_laplace need each other, with the same n_features and steps");
  }
  const { out_of_bounds: outOfBounds = "clip" } = wire;
  const countsOutside = choice(outOfBounds, "out_of_bounds", ["clip", "count"]) === "count";
  const nSymbols = encoding.nSymbols === undefined ? undefined : encoding.nSymbols + Number(countsOutside && addsSymbol(encoding));
  check(mechanism.nSymbols === nSymbols, "the number of symbols of the mechanism must match the encoding");
  if (isLatticeNoise(mechanism)) {
    check(mechanism.mark > 0 === countsOutside, "vectors must have a mark if and only if the round counts records outside");
  }
  return { features, encoding, mechanism, participation: readParticipation(wire["participation"]), countsOutside };
}

function checkAttributes(features: readonly Feature[], encoding: Encoding): void {
  for (const { name, kind } of encoding.attributes ?? []) {
    const feature = features.find((each) => each.name === name);
    const fits = feature === undefined || (kind === "numeric" && feature.periodic !== true);
    check(fits, "an attribute with the name of a feature must be numeric, and the feature must not be periodic");
  }
}

/** Return the attributes that the record of a round has in addition to its features. */
export function ownAttributes({ features, encoding }: RoundSpec): readonly Attribute[] {
  const attributes = encoding.attributes ?? [];
  return attributes.filter(({ name }) => !features.some((feature) => feature.name === name));
}

/**
 * Return the part of a record that has the features, and its members if there are attributes.
 *
 * @throws InvalidPoint There are attributes, and a name is missing or unknown.
 */
export function splitRecord(features: readonly Feature[], attributes: readonly Attribute[], record: PersonRecord): { readonly point: PersonRecord; readonly given: Json } {
  if (attributes.length === 0) return { point: record, given: {} };
  const given: Json = isObject(record) ? record : {};
  const names = features.map(({ name }) => name);
  const known = [...names, ...attributes.map(({ name }) => name)];
  if (Object.keys(given).length !== known.length || !known.every((name) => Object.hasOwn(given, name))) {
    throw new InvalidPoint(`a record must have the features and attributes ${known.join(", ")} by name`);
  }
  return { point: Object.fromEntries(names.map((name) => [name, given[name] as number])), given };
}

/**
 * Return the part of a record that has the features, and the category of each attribute of the round.
 *
 * All attributes are read before the slot is drawn, so that a refusal does not depend on the slot.
 */
export function readRecord(spec: RoundSpec, record: PersonRecord): { readonly point: PersonRecord; readonly codes: readonly number[] } {
  const { features, encoding } = spec;
  const attributes = encoding.attributes ?? [];
  if (attributes.length === 0) return { point: record, codes: [] };
  const names = features.map(({ name }) => name);
  const { point, given } = splitRecord(features, ownAttributes(spec), record);
  const values = readValues(features, point);
  const valueOf = (name: string): unknown => (names.includes(name) ? values[names.indexOf(name)] : given[name]);
  return { point: values, codes: attributes.map((each) => each.category(valueOf(each.name))) };
}

function readTagged<T>(kinds: Readonly<Record<string, (wire: Json) => T>>, name: string, wire: unknown): T {
  check(isObject(wire), `the ${name} must be an object`);
  const tag = wire["type"];
  const read = typeof tag === "string" && Object.hasOwn(kinds, tag) ? kinds[tag] : undefined;
  check(read !== undefined, `unknown ${name} type; this version supports ${Object.keys(kinds).join(", ")}`);
  return read(wire);
}

function readFeature(wire: unknown): ReadFeature {
  check(isObject(wire), "a feature must be an object");
  checkKeys(wire, "Feature", ["name", "lower", "upper"], ["unit", "periodic", "coordinate"]);
  const { unit = "", periodic = false, coordinate } = wire;
  const name = text(wire["name"], "the name of a feature");
  check(typeof unit === "string" && unit.length <= 64, `${name}: the unit may have at most 64 characters`);
  const lower = finite(wire["lower"], `${name}: lower`);
  const upper = finite(wire["upper"], `${name}: upper`);
  check(lower < upper, `${name}: lower must be less than upper`);
  check(Number.isFinite(upper - lower), `${name}: the distance of the bounds must be finite`);
  check(typeof periodic === "boolean", `${name}: periodic must be true or false`);
  check(coordinate === undefined || coordinate === "longitude" || coordinate === "latitude", `${name}: coordinate must be longitude or latitude`);
  if (coordinate === "latitude") check(!periodic && lower >= -90 && upper <= 90, `${name}: the bounds of a latitude must be from -90 to 90 degrees`);
  if (coordinate === "longitude") {
    check(lower >= -360 && upper <= 540 && upper - lower <= 360, `${name}: the bounds of a longitude must be at most 360 degrees apart`);
    check(periodic === (upper - lower === 360), `${name}: a longitude must be periodic if its bounds are 360 degrees apart`);
  }
  return { name, lower, upper, unit, periodic, coordinate };
}

function readParticipation(wire: unknown): Participation {
  check(isObject(wire), "the participation must be an object");
  checkKeys(wire, "Participation", ["lo", "hi"]);
  const lo = decimalWord(wire["lo"], "lo", 0n, WORD_SPAN);
  const hi = decimalWord(wire["hi"], "hi", 0n, WORD_SPAN);
  check(lo < hi, "the participation must satisfy 0 <= lo < hi <= 2^64");
  return { lo, hi };
}

const MOST_TURNS = 2 ** 52; // doubles beyond it have no fraction
const LIMITS = { latitude: 90, longitude: 360 }; // largest degrees that are a place

// Coefficients of sin(90° x) in odd powers of x, ascending. All devices use them, because the sine of a platform may differ.
const SINE_COEFFICIENTS: readonly number[] = [
  1.5707963267948966,
  -0.6459640975062463,
  0.07969262624616703,
  -0.004681754135318688,
  0.00016044118478735983,
  -3.598843235212085e-06,
  5.692172921967927e-08,
  -6.688035109811468e-10,
  6.0669357311061955e-12,
  -4.377065467313742e-14,
  2.571422892860474e-16,
];

/** Return the sine of a latitude in [-90, 90] degrees. The order of operations is fixed. */
export function sine(latitude: number): number {
  const share = latitude / 90;
  const square = share * share;
  return SINE_COEFFICIENTS.reduceRight((total, coefficient) => total * square + coefficient, 0) * share;
}

/**
 * Clip a record to the bounds and scale each feature to [0, 1]. Move the value of a periodic feature by whole periods, and
 * scale the latitude of a place by its sine.
 *
 * @throws InvalidPoint The features do not match, or a value is not finite. The message contains no value.
 */
export function scale(features: readonly Feature[], record: PersonRecord): number[] {
  return readValues(features, record).map((value, index) => {
    const { lower, upper, periodic, coordinate } = features[index] as Feature;
    if (coordinate === "latitude") {
      const [low, high] = [sine(lower), sine(upper)];
      return (Math.min(Math.max(sine(value), low), high) - low) / (high - low);
    }
    if (periodic) {
      const turns = Math.min(Math.max((value - lower) / (upper - lower), -MOST_TURNS), MOST_TURNS);
      return turns - Math.floor(turns);
    }
    return (Math.min(Math.max(value, lower), upper) - lower) / (upper - lower);
  });
}

/** Check a record. Throw InvalidPoint as `scale` does. */
export function checkRecord(features: readonly Feature[], record: PersonRecord): RecordCheck {
  const values = readValues(features, record);
  const isOutside = ({ lower, upper }: Feature, index: number): boolean => !((values[index] as number) >= lower && (values[index] as number) <= upper);
  return { outside: features.filter(isOutside).map(({ name }) => name) };
}

/** Return the names of the features of a record for a round with a value outside of their bounds. Throw InvalidPoint. */
export function findOutside(spec: RoundSpec, record: PersonRecord): readonly string[] {
  return checkRecord(spec.features, readRecord(spec, record).point).outside;
}

/** Return the finite values of a record in the order of the features. The longitude of a place is near the middle of its bounds. */
function readValues(features: readonly Feature[], record: PersonRecord): number[] {
  return orderValues(features, record).map((value, index) => {
    const { name, lower, upper, coordinate } = features[index] as Feature;
    if (typeof value !== "number" || !Number.isFinite(value)) throw new InvalidPoint(`${name} must be a finite number`);
    if (coordinate === undefined) return value;
    if (Math.abs(value) > LIMITS[coordinate]) throw new InvalidPoint(`${name} must be from -${LIMITS[coordinate]} to ${LIMITS[coordinate]} degrees: latitude and longitude may be in the wrong order`);
    return coordinate === "latitude" ? value : value - 360 * Math.floor((value - ((lower + upper) / 2 - 180)) / 360);
  });
}

/** Return the values of a record in the order of the features. */
function orderValues(features: readonly Feature[], record: PersonRecord): readonly unknown[] {
  if (Array.isArray(record)) {
    if (record.length !== features.length) throw new InvalidPoint(`a record must have ${features.length} values`);
    return record;
  }
  const names = features.map((feature) => feature.name);
  if (isPosition(record)) return orderPosition(features, record);
  const given = isObject(record) ? Object.keys(record) : [];
  if (!isObject(record) || given.length !== names.length || !names.every((name) => given.includes(name))) {
    throw new InvalidPoint(`a record must have the features ${names.join(", ")}`);
  }
  return names.map((name) => record[name]);
}

function isPosition(record: PersonRecord): record is Position {
  return isObject(record) && isObject(record["coords"]);
}

/** Return the degrees of a position in the order of the features. Other data of the position, such as its time, are not read. */
function orderPosition(features: readonly Feature[], { coords }: Position): number[] {
  const [north, east] = [LATITUDES, LONGITUDES].map((names) => features.findIndex(({ name, coordinate }) => names.includes(coordinate ?? name.trim().toLowerCase())));
  if (features.length !== 2 || north === -1 || east === -1) {
    throw new InvalidPoint("a position needs a dataset with the features latitude and longitude alone: pass the values by feature name");
  }
  const { lower, upper } = features[east as number] as Feature;
  const longitudes = [coords.longitude, coords.longitude + 360, coords.longitude - 360];
  const longitude = longitudes.find((each) => each >= lower && each <= upper) ?? coords.longitude;
  return north === 0 ? [coords.latitude, longitude] : [longitude, coords.latitude];
}

/** Encode and perturb a record. Draw the slot first, then the words of the mechanism. */
export function perturb(spec: RoundSpec, record: PersonRecord, entropy: Entropy): PerturbedValue {
  findOutside(spec, record); // an invalid record uses no word
  const slot = drawBelow(entropy, spec.encoding.nSlots);
  return { slot, value: spec.mechanism.perturb(encode(spec, record, slot, entropy), entropy) };
}

/** Return the symbol of a record. Words are drawn only outside of the bounds in a round of phases or signs: its symbol. */
export function encode(spec: RoundSpec, record: PersonRecord, slot: number, entropy: Entropy): Symbol {
  const { encoding, mechanism } = spec;
  const { point, codes } = readRecord(spec, record);
  if (!spec.countsOutside || checkRecord(spec.features, point).outside.length === 0) {
    const own = encoding.symbol(scale(spec.features, point), slot, codes);
    return spec.countsOutside && typeof own !== "number" ? [...own, 0] : own;
  }
  if (isLatticeNoise(mechanism)) return [...spec.features.map(() => Math.floor(mechanism.steps / 2)), mechanism.mark];
  const nSymbols = encoding.nSymbols as number; // undefined for lattices only
  return addsSymbol(encoding) ? nSymbols : drawBelow(entropy, nSymbols);
}
