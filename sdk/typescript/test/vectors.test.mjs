/** The same integers as every Sfumato device: the published vectors, to the byte. */

import assert from "node:assert/strict";
import test from "node:test";

import * as sfumato from "../dist/index.js";
import { cases } from "./cases.mjs";
import { vectors } from "./vectors.mjs";

const files = Object.fromEntries(["reports", "caps", "devices", "refusals"].map((name) => [name, vectors(name)]));
const all = cases(sfumato, files, () => new sfumato.MemoryStore());

test("there are enough of them", () => {
  assert.ok(all.reduce((sum, { n }) => sum + n, 0) >= 200);
  assert.ok(files.refusals.length >= 30);
});

for (const { name, run } of all) test(name, run);

test("a device that does otherwise is found out", async () => {
  const [report] = structuredClone(files.reports);
  report.reports[0].value = `${report.reports[0].value.slice(0, -2)}ff`;
  const [device] = structuredClone(files.devices);
  device.calls[0].outcome = "too_late";
  for (const { run } of cases(sfumato, { reports: [report], caps: [{ epsilon: 1, epsilon_nano: "2" }], devices: [device], refusals: [] }, () => new sfumato.MemoryStore())) {
    await assert.rejects(async () => run());
  }
});
