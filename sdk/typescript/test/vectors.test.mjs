/** Tests of the published vectors, byte by byte. */

import assert from "node:assert/strict";
import test from "node:test";

import * as sfumato from "../dist/index.js";
import { createCases } from "./cases.mjs";
import { loadVectors } from "./vectors.mjs";

const files = Object.fromEntries(["reports", "caps", "devices", "refusals", "answers"].map((name) => [name, loadVectors(name)]));
const all = createCases(sfumato, files, () => new sfumato.MemoryStore());

test("the vectors contain enough reports and refusals", () => {
  assert.ok(all.reduce((sum, { n }) => sum + n, 0) >= 200);
  assert.ok(files.refusals.length >= 30);
});

for (const { name, run } of all) test(name, run);

test("a changed vector fails", async () => {
  const [report] = structuredClone(files.reports);
  report.reports[0].value = `${report.reports[0].value.slice(0, -2)}ff`;
  const [device] = structuredClone(files.devices);
  device.calls[0].outcome = "too_late";
  const answers = files.answers.slice(0, 40).map((each) => ({ ...each, state: each.state === "refused" ? "pending" : "refused" }));
  for (const { run } of createCases(sfumato, { reports: [report], caps: [{ epsilon: 1, epsilon_nano: "2" }], devices: [device], refusals: [], answers }, () => new sfumato.MemoryStore())) {
    await assert.rejects(async () => run());
  }
});
