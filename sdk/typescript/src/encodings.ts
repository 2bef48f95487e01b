/** Encodings: how a point of [0, 1]^d becomes a symbol, as published. Deterministic and public. */

import { at, integer, isOddBits, list, onlyKeys, quotient, check, type Json } from "./checks.js";

export const MAX_FEATURES = 64;
export const MAX_SYMBOLS = 2 ** 20; // of any encoding
export const MAX_STEPS = 2 ** 16; // lattice units across a feature's range
const MAX_TREE_CELLS = 2 ** 16;
const MAX_TREE_BITS = 48; // of a cell's place: exact in a double

// Projections are integers: with 64 features no sum leaves 2^40, and every product is below 2^53.
const LATTICE = 2 ** 20;
const MAX_WEIGHT = 2 ** 14;
const MAX_PROJECTION = MAX_FEATURES * MAX_WEIGHT * LATTICE;
const TURN = 2 ** 30; // of a phase

/** A number 0 .. nSymbols-1, or of a lattice a vector. */
export type Symbol = number | readonly number[];

/** How a point becomes a symbol under a slot, the public part of a report. */
export interface Encoding {
  readonly type: string;
  readonly nFeatures: number;
  readonly nSlots: number;
  /** How many symbols there are; of a lattice, which has too many to count, undefined. */
  readonly nSymbols: number | undefined;
  symbol(point: readonly number[], slot: number): Symbol;
}

/** A vector of integers 0 .. steps. */
export interface Lattice extends Encoding {
  readonly steps: number;
}

export function isLattice(encoding: Encoding): encoding is Lattice {
  return encoding.type === "lattice";
}

/** The cell of a coordinate in [0, 1], 0 .. nCells-1. */
function cell(coordinate: number, nCells: number): number {
  return Math.min(Math.floor(coordinate * nCells), nCells - 1);
}

/** A plain grid: the symbol is the cell, row-major, the first feature slowest. */
function grid(wire: Json): Encoding {
  onlyKeys(wire, "grid", ["type", "cells"]);
  const cells = list(wire["cells"], "cells", 1, MAX_FEATURES, (n) => integer(n, "cells", 1, MAX_SYMBOLS));
  const nSymbols = cells.reduce((product, n) => product * n, 1);
  check(nSymbols >= 2 && nSymbols <= MAX_SYMBOLS, `a grid has 2 to ${MAX_SYMBOLS} cells`);
  const symbol = (point: readonly number[]) =>
    cells.reduce((index, n, feature) => index * n + cell(at(point, feature), n), 0);
  return { type: "grid", nFeatures: cells.length, nSlots: 1, nSymbols, symbol };
}

/** A coarse grid under one of `shifts` per feature public shifts; the slot is the shift, row-major. */
function shiftedGrid(wire: Json): Encoding {
  onlyKeys(wire, "shifted_grid", ["type", "n_features", "cells", "shifts"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, 8);
  const cells = integer(wire["cells"], "cells", 1, 4096);
  const shifts = integer(wire["shifts"], "shifts", 1, 64);
  const nSymbols = (cells + 1) ** nFeatures;
  const nSlots = shifts ** nFeatures;
  check(nSymbols <= MAX_SYMBOLS, `a shifted grid has at most ${MAX_SYMBOLS} symbols`);
  check(nSlots <= MAX_SYMBOLS, `a shifted grid has at most ${MAX_SYMBOLS} slots`);
  const symbol = (point: readonly number[], slot: number) => {
    let index = 0;
    for (let feature = 0; feature < nFeatures; feature += 1) {
      const shift = quotient(slot, shifts ** (nFeatures - 1 - feature)) % shifts;
      index = index * (cells + 1) + quotient(cell(at(point, feature), cells * shifts) + shift, shifts);
    }
    return index;
  };
  return { type: "shifted_grid", nFeatures, nSlots, nSymbols, symbol };
}

/** Dyadic cells of different levels that tile the box, listed as a tree is walked. */
function treeGrid(wire: Json): Encoding {
  onlyKeys(wire, "tree_grid", ["type", "n_features", "levels"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, 8);
  const most = Math.floor(MAX_TREE_BITS / nFeatures);
  const levels = list(wire["levels"], "levels", 2, MAX_TREE_CELLS, (level) => integer(level, "levels", 0, most));
  const depth = levels.reduce((deepest, level) => Math.max(deepest, level), 0);
  const whole = 2 ** (depth * nFeatures);
  const starts: number[] = []; // each cell's first finest box, counted along the walk
  let place = 0;
  for (const level of levels) {
    const size = 2 ** ((depth - level) * nFeatures);
    check(place % size === 0 && place + size <= whole, "these cells do not tile the box");
    starts.push(place);
    place += size;
  }
  check(place === whole, "these cells do not tile the box");
  const symbol = (point: readonly number[]) => {
    const finest = point.map((coordinate) => cell(coordinate, 2 ** depth));
    return lastAtOrBelow(starts, zPlace(finest, depth));
  };
  return { type: "tree_grid", nFeatures, nSlots: 1, nSymbols: levels.length, symbol };
}

/** The place along the walk of a finest box: its index's bits in turn, the first feature's first. */
function zPlace(index: readonly number[], depth: number): number {
  let place = 0; // below 2^48, so by arithmetic: bitwise operators stop at 32
  for (let bit = depth - 1; bit >= 0; bit -= 1) {
    for (const part of index) place = place * 2 + (quotient(part, 2 ** bit) % 2);
  }
  return place;
}

function lastAtOrBelow(ascending: readonly number[], value: number): number {
  let low = 0;
  let high = ascending.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (at(ascending, middle) <= value) low = middle;
    else high = middle;
  }
  return low;
}

type Weights = readonly (readonly number[])[];

function readWeights(wire: unknown, most: number): Weights {
  const rows = list(wire, "weights", 1, most, (row) =>
    list(row, "a row of weights", 1, MAX_FEATURES, (weight) => integer(weight, "weights", -MAX_WEIGHT, MAX_WEIGHT)),
  );
  check(rows.every((row) => row.length === at(rows, 0).length), "rows of weights are of one length");
  check(rows.every((row) => row.some((weight) => weight !== 0)), "a row of weights is not all zero");
  return rows;
}

/** The sum of weight times coordinate, coordinates as places 0 .. 2^20-1: below 2^40 in size. */
function project(weights: readonly number[], point: readonly number[]): number {
  return weights.reduce((sum, weight, feature) => sum + weight * cell(at(point, feature), LATTICE), 0);
}

/** One of several public projections, cut into coarse cells under one of several public shifts. */
function projectedGrid(wire: Json): Encoding {
  onlyKeys(wire, "projected_grid", ["type", "weights", "lowers", "spans", "cells", "shifts"]);
  const weights = readWeights(wire["weights"], 128);
  const n = weights.length;
  const lowers = list(wire["lowers"], "lowers", n, n, (end) => integer(end, "lowers", -MAX_PROJECTION, MAX_PROJECTION));
  const spans = list(wire["spans"], "spans", n, n, (end) => integer(end, "spans", 1, 2 * MAX_PROJECTION));
  const cells = integer(wire["cells"], "cells", 1, 256);
  const shifts = integer(wire["shifts"], "shifts", 1, 8);
  const fineCells = cells * shifts;
  const symbol = (point: readonly number[], slot: number) => {
    const projection = quotient(slot, shifts);
    const span = at(spans, projection);
    const along = project(at(weights, projection), point) - at(lowers, projection);
    const fine = quotient(Math.min(Math.max(along, 0), span) * fineCells, span);
    return quotient(Math.min(fine, fineCells - 1) + (slot % shifts), shifts);
  };
  return { type: "projected_grid", nFeatures: at(weights, 0).length, nSlots: n * shifts, nSymbols: cells + 1, symbol };
}

/** On which side of each of B public cuts a point lies: bit b of the symbol says of cut b. */
function halfspaceCode(wire: Json): Encoding {
  onlyKeys(wire, "halfspace_code", ["type", "weights", "thresholds"]);
  const weights = readWeights(wire["weights"], 12);
  const n = weights.length;
  const thresholds = list(wire["thresholds"], "thresholds", n, n, (threshold) =>
    integer(threshold, "thresholds", -MAX_PROJECTION, MAX_PROJECTION),
  );
  const symbol = (point: readonly number[]) =>
    weights.reduce((code, row, bit) => code + (project(row, point) >= at(thresholds, bit) ? 2 ** bit : 0), 0);
  return { type: "halfspace_code", nFeatures: at(weights, 0).length, nSlots: 1, nSymbols: 2 ** n, symbol };
}

/** The phase of one of several public waves: which of L equal parts of a turn a point falls in. */
function phase(wire: Json): Encoding {
  onlyKeys(wire, "phase", ["type", "weights", "phases"]);
  const weights = readWeights(wire["weights"], 1024);
  const phases = integer(wire["phases"], "phases", 4, 1024);
  const symbol = (point: readonly number[], slot: number) => {
    const turned = project(at(weights, slot), point) % TURN;
    return quotient((turned < 0 ? turned + TURN : turned) * phases, TURN);
  };
  return { type: "phase", nFeatures: at(weights, 0).length, nSlots: weights.length, nSymbols: phases, symbol };
}

/** A point as a vector of integers: a coordinate in [0, 1] is floor(x steps + 1/2). */
function lattice(wire: Json): Lattice {
  onlyKeys(wire, "lattice", ["type", "n_features", "steps"]);
  const nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES);
  const steps = integer(wire["steps"], "steps", 1, MAX_STEPS);
  const symbol = (point: readonly number[]) => point.map((coordinate) => Math.floor(coordinate * steps + 0.5));
  return { type: "lattice", nFeatures, nSlots: 1, nSymbols: undefined, steps, symbol };
}

type Centroids = readonly (readonly number[])[];

function readCentroids(wire: unknown): Centroids {
  const rows = list(wire, "centroids", 1, 256, (row) =>
    list(row, "a centroid", 1, MAX_FEATURES, (place) => integer(place, "coordinates", 0, LATTICE - 1)),
  );
  check(rows.every((row) => row.length === at(rows, 0).length), "centroids are rows of one length");
  return rows;
}

/** The centroid, of equally near ones the first, and whether the point lies above it in the feature; past the last, it does. */
function nearest(centroids: Centroids, point: readonly number[], feature: number): [number, boolean] {
  const places = point.map((coordinate) => cell(coordinate, LATTICE));
  let best = 0;
  let least = Infinity;
  centroids.forEach((row, index) => {
    const distance = row.reduce((sum, x, axis) => sum + (x - at(places, axis)) ** 2, 0); // below 2^46: exact
    if (distance < least) [best, least] = [index, distance];
  });
  return [best, feature === places.length || at(places, feature) > at(at(centroids, best), feature)];
}

/** The nearest of several public centroids, and on which side of it a point lies in one feature, the slot. */
function nearestCentroid(wire: Json): Encoding {
  onlyKeys(wire, "nearest_centroid", ["type", "centroids"]);
  const centroids = readCentroids(wire["centroids"]);
  const nFeatures = at(centroids, 0).length;
  const symbol = (point: readonly number[], slot: number) => {
    const [index, above] = nearest(centroids, point, slot);
    return 2 * index + Number(above);
  };
  return { type: "nearest_centroid", nFeatures, nSlots: nFeatures, nSymbols: 2 * centroids.length, symbol };
}

/** One bit about the nearest centroid: a public Walsh sign of it, times the side a point lies on. */
function centroidSign(wire: Json): Encoding {
  onlyKeys(wire, "centroid_sign", ["type", "centroids"]);
  const centroids = readCentroids(wire["centroids"]);
  const nFeatures = at(centroids, 0).length;
  let nRows = 1;
  while (nRows < centroids.length) nRows *= 2;
  const symbol = (point: readonly number[], slot: number) => {
    const [index, above] = nearest(centroids, point, quotient(slot, nRows));
    return isOddBits((slot % nRows) & index) === above ? 0 : 1;
  };
  return { type: "centroid_sign", nFeatures, nSlots: (nFeatures + 1) * nRows, nSymbols: 2, symbol };
}

/** Every encoding this version knows, by the tag it travels under. */
export const ENCODINGS: Readonly<Record<string, (wire: Json) => Encoding>> = {
  grid,
  shifted_grid: shiftedGrid,
  tree_grid: treeGrid,
  projected_grid: projectedGrid,
  halfspace_code: halfspaceCode,
  phase,
  lattice,
  nearest_centroid: nearestCentroid,
  centroid_sign: centroidSign,
};
