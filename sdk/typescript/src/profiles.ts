/** Profile rounds: the cluster of a record among published clusters, together with the category of one attribute. */

import { MAX_ATTRIBUTES, readAttributes } from "./attributes.js";
import { at, check, checkKeys, integer, list, type Json } from "./checks.js";
import { cellIndex, findLastAtOrBelow, findNearest, MAX_FEATURES, MAX_SYMBOLS, readCentroids, type Encoding } from "./encodings.js";

const MAX_PROFILE_SYMBOLS = 4096;
const MAX_MAP_RUNS = 2 ** 15;

/** Read a profile: clusters as centroids, or as runs of equal labels of the cells of a grid, and the attributes. */
export function readProfile(wire: Json): Encoding {
  checkKeys(wire, "profile", ["type", "attributes"], ["centroids", "cells", "starts", "labels"]);
  const attributes = readAttributes(wire["attributes"], 1, MAX_ATTRIBUTES);
  const { centroids = [], cells = [], starts = [], labels = [] } = wire;
  const lengths = [centroids, cells, starts, labels].map((each) => (check(Array.isArray(each), "the clusters of a profile must be lists"), each.length));
  const hasMap = at(lengths, 0) === 0;
  check(lengths.slice(1).every((length) => length > 0 === hasMap), "a profile must have either centroids, or cells with starts and labels");
  const { nFeatures, nClusters, cluster } = hasMap ? readMap(cells, starts, labels) : readNearest(centroids);
  const nValues = Math.max(...attributes.map(({ nCategories }) => nCategories));
  const nSymbols = nClusters * nValues;
  check(nSymbols <= MAX_PROFILE_SYMBOLS, `clusters times categories must be at most ${MAX_PROFILE_SYMBOLS}`);
  const symbol = (point: readonly number[], slot: number, codes: readonly number[]) => cluster(point) * nValues + at(codes, slot);
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
