/** Profile rounds: the cluster of a record among published clusters, together with the category of one attribute. */

import { at, check, checkKeys, finite, integer, isObject, list, type Json } from "./checks.js";
import { cellIndex, findLastAtOrBelow, findNearest, MAX_FEATURES, MAX_SYMBOLS, readCentroids, type Encoding } from "./encodings.js";
import { InvalidPoint } from "./errors.js";

const MAX_ATTRIBUTES = 64;
const MAX_VALUES = 256;
const MAX_PROFILE_SYMBOLS = 4096;
const MAX_MAP_RUNS = 2 ** 15;

/** An attribute of a profile round: a public vocabulary, or numbers with public bins. */
export interface Attribute {
  readonly name: string;
  readonly kind: "categorical" | "numeric";
  readonly nCategories: number;
  /**
   * Return the place of a value among the categories.
   *
   * @throws InvalidPoint The value is refused. The message contains no value.
   */
  category(value: unknown): number;
}

/** An encoding with attributes. Its `symbol` is the first one of the cluster; the category is added. */
export interface ProfileEncoding extends Encoding {
  readonly attributes: readonly Attribute[];
}

/** Return whether an encoding is that of a profile round. */
export function isProfile(encoding: Encoding): encoding is ProfileEncoding {
  return encoding.type === "profile";
}

function text(value: unknown, name: string): string {
  check(typeof value === "string" && value.length > 0 && value.length <= 64, `${name} must be text of 1 to 64 characters`);
  return value;
}

function choice(value: unknown, name: string, choices: readonly string[]): string {
  check(typeof value === "string" && choices.includes(value), `${name} must be one of ${choices.join(", ")}`);
  return value;
}

function readAttribute(wire: unknown): Attribute {
  check(isObject(wire), "an attribute must be an object");
  const kind = choice(wire["kind"], "the kind of an attribute", ["categorical", "numeric"]);
  return kind === "categorical" ? readCategorical(wire) : readNumeric(wire);
}

/** Read an attribute with a vocabulary. Values are compared by their code units, without a normal form. */
function readCategorical(wire: Json): Attribute {
  checkKeys(wire, "an attribute", ["name", "kind", "values"], ["unknown", "missing", "use", "weight"]);
  const name = text(wire["name"], "the name of an attribute");
  const values = list(wire["values"], "values", 2, MAX_VALUES, (value) => text(value, `${name}: a value`));
  check(new Set(values).size === values.length, `${name}: values must be unique`);
  const takesOther = choice(wire["unknown"] ?? "refuse", `${name}: unknown`, ["refuse", "other"]) === "other";
  const takesMissing = readMissing(wire, name);
  const nCategories = values.length + Number(takesOther) + Number(takesMissing);
  const category = (value: unknown): number => {
    if (isMissing(value)) return missingCategory(name, takesMissing, nCategories);
    if (typeof value !== "string") throw new InvalidPoint(`${name} must be text, or missing`);
    const place = values.indexOf(value);
    if (place === -1 && !takesOther) throw new InvalidPoint(`${name} must be one of its declared values`);
    return place === -1 ? values.length : place;
  };
  return { name, kind: "categorical", nCategories, category };
}

/** Read a numeric attribute. A value belongs to the bin that starts at or below it; beyond the edges, to the nearest bin. */
function readNumeric(wire: Json): Attribute {
  checkKeys(wire, "an attribute", ["name", "kind", "bins"], ["missing", "use", "unit"]);
  const name = text(wire["name"], "the name of an attribute");
  const bins = list(wire["bins"], "bins", 3, MAX_VALUES + 1, (edge) => finite(edge, `${name}: an edge`));
  check(bins.every((edge, place) => place === 0 || edge > at(bins, place - 1)), `${name}: the edges must be ascending`);
  const takesMissing = readMissing(wire, name);
  const nCategories = bins.length - 1 + Number(takesMissing);
  const inner = bins.slice(1, -1);
  const category = (value: unknown): number => {
    if (isMissing(value)) return missingCategory(name, takesMissing, nCategories);
    if (typeof value !== "number" || !Number.isFinite(value)) throw new InvalidPoint(`${name} must be a finite number`);
    return inner.filter((edge) => edge <= value).length;
  };
  return { name, kind: "numeric", nCategories, category };
}

function readMissing(wire: Json, name: string): boolean {
  return choice(wire["missing"] ?? "refuse", `${name}: missing`, ["refuse", "category"]) === "category";
}

function isMissing(value: unknown): boolean {
  return value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
}

function missingCategory(name: string, takesMissing: boolean, nCategories: number): number {
  if (!takesMissing) throw new InvalidPoint(`${name} is missing: give a value`);
  return nCategories - 1;
}

/** Read a profile: clusters as centroids, or as runs of equal labels of the cells of a grid, and the attributes. */
export function readProfile(wire: Json): ProfileEncoding {
  checkKeys(wire, "profile", ["type", "attributes"], ["centroids", "cells", "starts", "labels"]);
  const attributes = list(wire["attributes"], "attributes", 1, MAX_ATTRIBUTES, readAttribute);
  check(new Set(attributes.map(({ name }) => name)).size === attributes.length, "the attributes of a profile must have unique names");
  const { centroids = [], cells = [], starts = [], labels = [] } = wire;
  const lengths = [centroids, cells, starts, labels].map((each) => (check(Array.isArray(each), "the clusters of a profile must be lists"), each.length));
  const hasMap = at(lengths, 0) === 0;
  check(lengths.slice(1).every((length) => length > 0 === hasMap), "a profile must have either centroids, or cells with starts and labels");
  const { nFeatures, nClusters, cluster } = hasMap ? readMap(cells, starts, labels) : readNearest(centroids);
  const nValues = Math.max(...attributes.map(({ nCategories }) => nCategories));
  const nSymbols = nClusters * nValues;
  check(nSymbols <= MAX_PROFILE_SYMBOLS, `clusters times categories must be at most ${MAX_PROFILE_SYMBOLS}`);
  const symbol = (point: readonly number[]) => cluster(point) * nValues;
  const suits = (circles: readonly number[]) => hasMap || circles.length === 0; // a cell of a map is one on a circle
  return { type: "profile", nFeatures, nSlots: attributes.length, nSymbols, attributes, suits, symbol };
}

interface Clusters {
  readonly nFeatures: number;
  readonly nClusters: number;
  readonly cluster: (point: readonly number[]) => number;
}

function readNearest(wire: unknown): Clusters {
  const centroids = readCentroids(wire);
  const nFeatures = at(centroids, 0).length;
  return { nFeatures, nClusters: centroids.length, cluster: (point) => findNearest(centroids, point, nFeatures)[0] };
}

function readMap(wireCells: unknown, wireStarts: unknown, wireLabels: unknown): Clusters {
  const cells = list(wireCells, "cells", 1, MAX_FEATURES, (n) => integer(n, "cells", 1, MAX_SYMBOLS));
  const nCells = cells.reduce((product, n) => product * n, 1);
  check(nCells <= MAX_SYMBOLS, `a map must have at most ${MAX_SYMBOLS} cells`);
  const starts = list(wireStarts, "starts", 1, MAX_MAP_RUNS, (start) => integer(start, "starts", 0, nCells - 1));
  const labels = list(wireLabels, "labels", 1, MAX_MAP_RUNS, (label) => integer(label, "labels", 0, MAX_PROFILE_SYMBOLS - 1));
  check(starts.length === labels.length, "a map must have a label for each start");
  check(starts[0] === 0 && starts.every((start, run) => run === 0 || start > at(starts, run - 1)), "the starts of a map must ascend from 0");
  const cluster = (point: readonly number[]) => {
    const place = cells.reduce((index, n, feature) => index * n + cellIndex(at(point, feature), n), 0);
    return at(labels, findLastAtOrBelow(starts, place));
  };
  const nClusters = labels.reduce((most, label) => Math.max(most, label), 0) + 1;
  return { nFeatures: cells.length, nClusters, cluster };
}
