/** Encodings: deterministic public functions that turn a point in [0, 1]^d and a slot into a symbol. */

import { readCategoricals, type Attribute } from "./attributes.js";
import { at, check, checkKeys, hasOddParity, integer, list, quotient, type Json } from "./checks.js";

export const MAX_FEATURES = 64;
export const MAX_SYMBOLS = 2 ** 20;
export const MAX_STEPS = 2 ** 16; // lattice units across a feature's range
const MAX_TREE_CELLS = 2 ** 16;
const MAX_TREE_BITS = 48; // bits of a cell position, which a double represents exactly

// Projections are integers. With 64 features each sum is below 2^40 and each product below 2^53, so doubles are exact.
const LATTICE = 2 ** 20;
const MAX_WEIGHT = 2 ** 14;
const TURN = 2 ** 30; // projection units per full turn of a phase
const FULL_TURN = TURN / LATTICE; // weight of a full turn across the range of a feature

/** A symbol: a number in 0 .. nSymbols-1, or a vector of integers for a lattice encoding. */
export type Symbol = number | readonly number[];

/** A function that turns a point and a slot, the public part of a report, into a symbol. */
export interface Encoding {
  readonly type: string;
  readonly nFeatures: number;
  readonly nSlots: number;
  /** Number of symbols, or undefined for a lattice, where symbols are vectors. */
  readonly nSymbols: number | undefined;
  /** Return whether the encoding suits periodic features with these indices. If absent, it suits plain features alone. */
  readonly suits?: (circles: readonly number[]) => boolean;
  /** The attributes whose categories are part of the symbols, if there are any. */
  readonly attributes?: readonly Attribute[];
  /** Return the symbol of a point under a slot. `codes` has the category of each attribute. */
  symbol(point: readonly number[], slot: number, codes: readonly number[]): Symbol;
}

/** An encoding that turns a point into a vector of integers in 0 .. steps. */
export interface Lattice extends Encoding {
  readonly steps: number;
}

/**
 * Return whether records outside of the bounds have a symbol of their own, the last one.
 *
 * Phases and signs are symmetric, so such a record has a uniformly random one. Vectors have a mark.
 */
export function addsSymbol(encoding: Encoding): boolean {
  return !["phase", "centroid_sign", "lattice"].includes(encoding.type);
}

/** Return whether an encoding is a lattice. */
export function isLattice(encoding: Encoding): encoding is Lattice {
  return encoding.type === "lattice";
}

/** Return the cell, 0 .. nCells-1, of a coordinate in [0, 1]. */
export function cellIndex(coordinate: number, nCells: number): number {
  return Math.min(Math.floor(coordinate * nCells), nCells - 1);
}

/** Read a grid encoding. The symbol is the cell index in row-major order; the last feature varies fastest. */
function readGrid(wire: Json): Encoding {
  checkKeys(wire, "grid", ["type", "cells"]);
  const cells = list(wire["cells"], "cells", 1, MAX_FEATURES, (n) => integer(n, "cells", 1, MAX_SYMBOLS));
  const nSymbols = cells.reduce((product, n) => product * n, 1);
  check(nSymbols >= 2 && nSymbols <= MAX_SYMBOLS, `a grid must have 2 to ${MAX_SYMBOLS} cells`);
  const symbol = (point: readonly number[]) =>
    cells.reduce((index, n, feature) => index * n + cellIndex(at(point, feature), n), 0);
  return { type: "grid", nFeatures: cells.length, nSlots: 1, nSymbols, suits: () => true, symbol };
}

/**
 * Read a shifted grid: a coarse grid with `shifts` public shifts per feature. The slot is the shift index in row-major order.
 *
 * A feature has `cells` coarse cells on a circle, and one more between bounds. With an attribute of V categories, the symbol is
 * V times the cell plus the category.
 */
function readShiftedGrid(wire: Json): Encoding {
  checkKeys(wire, "shifted_grid", ["type", "n_features", "cells", "shifts"], ["circles", "attributes"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, 8);
  const cells = integer(wire["cells"], "cells", 1, 4096);
  const shifts = integer(wire["shifts"], "shifts", 1, 64);
  const { circles: places = [] } = wire;
  check(Array.isArray(places), "circles must be a list");
  const circles = places.map((place) => integer(place, "circles", 0, nFeatures - 1));
  check(circles.every((place, index) => index === 0 || place > at(circles, index - 1)), "circles must be ascending");
  check(circles.length === 0 || cells >= 2, "a circle must have at least 2 cells");
  const along = Array.from({ length: nFeatures }, (_, feature) => cells + Number(!circles.includes(feature)));
  const attributes = readCategoricals(wire, 1);
  const nCategories = attributes.reduce((product, each) => product * each.nCategories, 1);
  const nSymbols = along.reduce((product, n) => product * n, nCategories);
  const nSlots = shifts ** nFeatures;
  check(nSymbols <= MAX_SYMBOLS, `a shifted grid may have at most ${MAX_SYMBOLS} symbols`);
  check(nSlots <= MAX_SYMBOLS, `a shifted grid may have at most ${MAX_SYMBOLS} slots`);
  const symbol = (point: readonly number[], slot: number, codes: readonly number[]) => {
    let index = 0;
    for (let feature = 0; feature < nFeatures; feature += 1) {
      const shift = quotient(slot, shifts ** (nFeatures - 1 - feature)) % shifts;
      const coarse = quotient(cellIndex(at(point, feature), cells * shifts) + shift, shifts);
      index = index * at(along, feature) + (coarse % at(along, feature));
    }
    return index * nCategories + (codes[0] ?? 0);
  };
  const suits = (periodic: readonly number[]) => periodic.join() === circles.join();
  return { type: "shifted_grid", nFeatures, nSlots, nSymbols, attributes, suits, symbol };
}

/** Read a tree grid: dyadic cells of different levels that tile the bounds, in Z-order. */
function readTreeGrid(wire: Json): Encoding {
  checkKeys(wire, "tree_grid", ["type", "n_features", "levels"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, 8);
  const most = Math.floor(MAX_TREE_BITS / nFeatures);
  const levels = list(wire["levels"], "levels", 2, MAX_TREE_CELLS, (level) => integer(level, "levels", 0, most));
  const depth = levels.reduce((deepest, level) => Math.max(deepest, level), 0);
  const whole = 2 ** (depth * nFeatures);
  const starts: number[] = []; // Z-order position where each cell starts, in cells of the deepest level
  let position = 0;
  for (const level of levels) {
    const size = 2 ** ((depth - level) * nFeatures);
    check(position % size === 0 && position + size <= whole, "the cells of a tree grid must tile the bounds");
    starts.push(position);
    position += size;
  }
  check(position === whole, "the cells of a tree grid must tile the bounds");
  const symbol = (point: readonly number[]) => {
    const finest = point.map((coordinate) => cellIndex(coordinate, 2 ** depth));
    return findLastAtOrBelow(starts, zOrderPosition(finest, depth));
  };
  return { type: "tree_grid", nFeatures, nSlots: 1, nSymbols: levels.length, symbol };
}

/** Return the Z-order position of a cell of the deepest level: the interleaved bits of its indices, first feature first. */
function zOrderPosition(index: readonly number[], depth: number): number {
  let position = 0; // up to 48 bits; bitwise operators have only 32
  for (let bit = depth - 1; bit >= 0; bit -= 1) {
    for (const part of index) position = position * 2 + (quotient(part, 2 ** bit) % 2);
  }
  return position;
}

/** Return the index of the last item of an ascending list that is at most `value`. */
export function findLastAtOrBelow(ascending: readonly number[], value: number): number {
  let low = 0;
  let high = ascending.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (at(ascending, middle) <= value) low = middle;
    else high = middle;
  }
  return low;
}

const MAX_WAVES = 1024;
const MAX_PHASE_ATTRIBUTES = 4;
const MAX_PHASE_CATEGORIES = 16; // with those of unknown and of missing values

type Weights = readonly (readonly number[])[];

function readWeights(wire: unknown, most: number): Weights {
  const rows = list(wire, "weights", 1, most, (row) =>
    list(row, "a row of weights", 1, MAX_FEATURES, (weight) => integer(weight, "weights", -MAX_WEIGHT, MAX_WEIGHT)),
  );
  check(rows.every((row) => row.length === at(rows, 0).length), "all rows of weights must have the same length");
  check(rows.some((row) => row.some((weight) => weight !== 0)), "the weights must not all be zero");
  return rows;
}

/** Return the weighted sum of the coordinates, each scaled to an integer in 0 .. 2^20-1. Its size is below 2^40. */
function project(weights: readonly number[], point: readonly number[]): number {
  return weights.reduce((sum, weight, feature) => sum + weight * cellIndex(at(point, feature), LATTICE), 0);
}

/** Read the characters of each wave, per attribute: an integer below the number of categories. Without attributes, none. */
function readCharacters(wire: unknown, attributes: readonly Attribute[], weights: Weights): Weights {
  const nRows = attributes.length === 0 ? 0 : weights.length;
  const rows = list(wire, "characters", nRows, nRows, (row) => {
    const own = list(row, "a row of characters", attributes.length, attributes.length, (character) => character);
    return own.map((character, place) => integer(character, "characters", 0, at(attributes, place).nCategories - 1));
  });
  const isZero = (row: readonly number[]) => row.every((number) => number === 0);
  check(
    rows.every((row, wave) => isZero(row) || !isZero(at(weights, wave))),
    "a wave of weight zero must have characters of zero",
  );
  check(
    attributes.every((_, place) => rows.some((row) => at(row, place) !== 0)),
    "each attribute must be in a wave",
  );
  return rows;
}

/**
 * Read a phase encoding: the slot selects a public wave, and the symbol is its quantised phase at the point.
 *
 * It suits a circle if each wave makes whole turns along it. A category c of m adds a c / m turns for the character a of the wave,
 * rounded down to a phase unit.
 */
function readPhase(wire: Json): Encoding {
  checkKeys(wire, "phase", ["type", "weights", "phases"], ["attributes", "characters"]);
  const weights = readWeights(wire["weights"], MAX_WAVES);
  const phases = integer(wire["phases"], "phases", 4, 1024);
  const { characters: given = [] } = wire;
  const attributes = readCategoricals(wire, MAX_PHASE_ATTRIBUTES);
  check(
    attributes.every(({ nCategories }) => nCategories <= MAX_PHASE_CATEGORIES),
    `an attribute of phases may have at most ${MAX_PHASE_CATEGORIES} categories`,
  );
  const characters = readCharacters(given, attributes, weights);
  const symbol = (point: readonly number[], slot: number, codes: readonly number[]) => {
    let turned = project(at(weights, slot), point) % TURN;
    attributes.forEach(({ nCategories }, place) => {
      const step = (at(at(characters, slot), place) * at(codes, place)) % nCategories;
      turned += quotient(step * TURN, nCategories); // below 2^34
    });
    turned %= TURN;
    return quotient((turned < 0 ? turned + TURN : turned) * phases, TURN);
  };
  const suits = (circles: readonly number[]) => weights.every((row) => circles.every((place) => at(row, place) % FULL_TURN === 0));
  return { type: "phase", nFeatures: at(weights, 0).length, nSlots: weights.length, nSymbols: phases, attributes, suits, symbol };
}

/** Read a lattice: the symbol is the vector of floor(x steps + 1/2) over the coordinates x in [0, 1]. */
function readLattice(wire: Json): Lattice {
  checkKeys(wire, "lattice", ["type", "n_features", "steps"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES);
  const steps = integer(wire["steps"], "steps", 1, MAX_STEPS);
  const symbol = (point: readonly number[]) => point.map((coordinate) => Math.floor(coordinate * steps + 0.5));
  return { type: "lattice", nFeatures, nSlots: 1, nSymbols: undefined, steps, symbol };
}

type Centroids = readonly (readonly number[])[];

export function readCentroids(wire: unknown): Centroids {
  const rows = list(wire, "centroids", 1, 256, (row) =>
    list(row, "a centroid", 1, MAX_FEATURES, (coordinate) => integer(coordinate, "coordinates", 0, LATTICE - 1)),
  );
  check(rows.every((row) => row.length === at(rows, 0).length), "all centroids must have the same length");
  return rows;
}

/**
 * Return the index of the nearest centroid and whether the point lies above it in a feature.
 *
 * Of equally near centroids, return the first. For `feature` equal to the number of features, the second value is true.
 */
export function findNearest(centroids: Centroids, point: readonly number[], feature: number): [number, boolean] {
  const coordinates = point.map((coordinate) => cellIndex(coordinate, LATTICE));
  let best = 0;
  let least = Infinity;
  centroids.forEach((row, index) => {
    const distance = row.reduce((sum, x, axis) => sum + (x - at(coordinates, axis)) ** 2, 0); // below 2^46, so exact
    if (distance < least) [best, least] = [index, distance];
  });
  return [best, feature === coordinates.length || at(coordinates, feature) > at(at(centroids, best), feature)];
}

/** Read a nearest-centroid encoding: the nearest public centroid and the side of it on which the point lies in feature `slot`. */
function readNearestCentroid(wire: Json): Encoding {
  checkKeys(wire, "nearest_centroid", ["type", "centroids"]);
  const centroids = readCentroids(wire["centroids"]);
  const nFeatures = at(centroids, 0).length;
  const symbol = (point: readonly number[], slot: number) => {
    const [index, above] = findNearest(centroids, point, slot);
    return 2 * index + Number(above);
  };
  return { type: "nearest_centroid", nFeatures, nSlots: nFeatures, nSymbols: 2 * centroids.length, symbol };
}

/** Read a centroid sign: the product of a public Walsh sign of the nearest centroid and the side on which the point lies. */
function readCentroidSign(wire: Json): Encoding {
  checkKeys(wire, "centroid_sign", ["type", "centroids"]);
  const centroids = readCentroids(wire["centroids"]);
  const nFeatures = at(centroids, 0).length;
  let nRows = 1;
  while (nRows < centroids.length) nRows *= 2;
  const symbol = (point: readonly number[], slot: number) => {
    const [index, above] = findNearest(centroids, point, quotient(slot, nRows));
    return hasOddParity((slot % nRows) & index) === above ? 0 : 1;
  };
  return { type: "centroid_sign", nFeatures, nSlots: (nFeatures + 1) * nRows, nSymbols: 2, symbol };
}

/** Readers of the encodings, by their `type` in JSON, except that of profiles; see `profiles.ts`. */
export const ENCODINGS: Readonly<Record<string, (wire: Json) => Encoding>> = {
  grid: readGrid,
  shifted_grid: readShiftedGrid,
  tree_grid: readTreeGrid,
  phase: readPhase,
  lattice: readLattice,
  nearest_centroid: readNearestCentroid,
  centroid_sign: readCentroidSign,
};
