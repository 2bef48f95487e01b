/** What a round publishes: everything a device needs to answer it, the same bytes for every device. */

import { decimalWord, finite, isObject, list, onlyKeys, check, type Json } from "./checks.js";
import { ENCODINGS, isLattice, MAX_FEATURES, type Encoding } from "./encodings.js";
import { word, WORD_SPAN, below, type Entropy } from "./entropy.js";
import { InvalidPoint } from "./errors.js";
import { isLatticeNoise, MECHANISMS, type Mechanism } from "./mechanisms.js";

export const SPEC_VERSION = 1;

/** One feature of a record, with its public bounds in its own unit. */
export interface Feature {
  readonly name: string;
  readonly lower: number;
  readonly upper: number;
  readonly unit?: string;
}

/** A record's values, in the features' units: in the features' order, or by their names. */
export type PersonRecord = readonly number[] | Readonly<Record<string, number>>;

/** The interval [lo, hi) of a device's secret 64-bit draw that answers a round. */
export interface Draw {
  readonly lo: bigint;
  readonly hi: bigint;
}

export interface RoundSpec {
  readonly features: readonly Required<Feature>[];
  readonly encoding: Encoding;
  readonly mechanism: Mechanism;
  readonly draw: Draw;
}

/** What a device makes of one record: the public slot and the perturbed value. */
export interface Perturbed {
  readonly slot: number;
  readonly value: Uint8Array;
}

/** Read a round spec; throws InvalidSpec for one this version cannot answer. */
export function readRoundSpec(wire: unknown): RoundSpec {
  check(isObject(wire), "a round spec is an object");
  check(wire["version"] === SPEC_VERSION, `this version answers round specs of version ${SPEC_VERSION}`);
  onlyKeys(wire, "RoundSpec", ["version", "features", "encoding", "mechanism", "draw"]);
  const features = list(wire["features"], "features", 1, MAX_FEATURES, readFeature);
  check(new Set(features.map((feature) => feature.name)).size === features.length, "feature names differ from one another");
  const encoding = tagged(ENCODINGS, "encoding", wire["encoding"]);
  const mechanism = tagged(MECHANISMS, "mechanism", wire["mechanism"]);
  check(features.length === encoding.nFeatures, "the encoding is for another number of features");
  if (isLattice(encoding) || isLatticeNoise(mechanism)) {
    check(isLattice(encoding) && isLatticeNoise(mechanism), "a lattice and discrete_laplace go together");
    const same = encoding.nFeatures === mechanism.nFeatures && encoding.steps === mechanism.steps;
    check(same, "a lattice and discrete_laplace over it go together");
  }
  check(mechanism.nSymbols === encoding.nSymbols, "the mechanism is for another number of symbols");
  return { features, encoding, mechanism, draw: readDraw(wire["draw"]) };
}

function tagged<T>(kinds: Readonly<Record<string, (wire: Json) => T>>, what: string, wire: unknown): T {
  check(isObject(wire), `the ${what} is an object`);
  const tag = wire["type"];
  const read = typeof tag === "string" && Object.hasOwn(kinds, tag) ? kinds[tag] : undefined;
  check(read !== undefined, `unknown ${what}; this version knows ${Object.keys(kinds).join(", ")}`);
  return read(wire);
}

function readFeature(wire: unknown): Required<Feature> {
  check(isObject(wire), "a feature is an object");
  onlyKeys(wire, "Feature", ["name", "lower", "upper"], ["unit"]);
  const { name, unit = "" } = wire;
  check(typeof name === "string" && name.length > 0 && name.length <= 64, "a feature needs a name of 1 to 64 characters");
  check(typeof unit === "string" && unit.length <= 64, `${name}: a unit has at most 64 characters`);
  const lower = finite(wire["lower"], `${name}: lower`);
  const upper = finite(wire["upper"], `${name}: upper`);
  check(lower < upper, `${name}: lower must lie below upper`);
  check(Number.isFinite(upper - lower), `${name}: bounds lie too far apart`);
  return { name, lower, upper, unit };
}

function readDraw(wire: unknown): Draw {
  check(isObject(wire), "a draw is an object");
  onlyKeys(wire, "Draw", ["lo", "hi"]);
  const lo = decimalWord(wire["lo"], "lo", 0n, WORD_SPAN);
  const hi = decimalWord(wire["hi"], "hi", 0n, WORD_SPAN);
  check(lo < hi, "a draw interval needs 0 <= lo < hi <= 2^64");
  return { lo, hi };
}

/** One record clipped to the bounds and scaled to [0, 1] per feature; throws InvalidPoint, which quotes no value. */
export function scale(features: readonly Feature[], record: PersonRecord): number[] {
  return inOrder(features, record).map((value, place) => {
    const feature = features[place] as Feature;
    if (typeof value !== "number" || !Number.isFinite(value)) throw new InvalidPoint(`${feature.name} is not finite`);
    const { lower, upper } = feature;
    return (Math.min(Math.max(value, lower), upper) - lower) / (upper - lower);
  });
}

function inOrder(features: readonly Feature[], record: PersonRecord): readonly unknown[] {
  if (Array.isArray(record)) {
    if (record.length !== features.length) throw new InvalidPoint(`a record has ${features.length} features`);
    return record;
  }
  const names = features.map((feature) => feature.name);
  const held = isObject(record) ? Object.keys(record) : [];
  if (!isObject(record) || held.length !== names.length || !names.every((name) => held.includes(name))) {
    throw new InvalidPoint(`a record has the features ${names.join(", ")}`);
  }
  return names.map((name) => record[name]);
}

/** Encode and perturb one record. Words drawn: the slot, then the mechanism's. */
export function perturb(spec: RoundSpec, record: PersonRecord, entropy: Entropy): Perturbed {
  const point = scale(spec.features, record);
  const slot = below(entropy, spec.encoding.nSlots);
  return { slot, value: spec.mechanism.perturb(spec.encoding.symbol(point, slot), entropy) };
}

/** A fresh secret draw. */
export const freshDraw: (entropy: Entropy) => bigint = word;
