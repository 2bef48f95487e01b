/** The package against a running service (SFUMATO_URL, SFUMATO_KEY): datasets, devices, a job, its result. */

import assert from "node:assert/strict";
import test from "node:test";

import { ApiProblem, Client } from "../dist/client.js";
import { Device, MemoryStore } from "../dist/index.js";

const { SFUMATO_URL: url, SFUMATO_KEY: key } = process.env;
const client = new Client({ url, key });
const FEATURES = [
  { name: "east", lower: 0, upper: 10, unit: "km" },
  { name: "north", lower: 0, upper: 10, unit: "km" },
];
const N_PEOPLE = 150;

async function dataset(changes = {}) {
  return client.createDataset({ name: "people", trust: "local", epsilon: 8, min_reports: 100, features: FEATURES, ...changes });
}

async function listed(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

test("people report, an analyst gets clusters", async () => {
  const made = await dataset();
  const encoding = { type: "grid", cells: [4, 4] };
  const round = await client.createRound(made.id, { encoding, epsilon: 8, target_reports: N_PEOPLE });
  const app = await client.createKey({ name: "app", scopes: ["device"], dataset_id: made.id });
  const person = (place) => {
    const device = new Device({ url, key: app.secret, datasetId: made.id, cap: 8, store: new MemoryStore(), features: FEATURES });
    return device.report({ east: place < N_PEOPLE / 2 ? 1 : 9, north: 5 });
  };
  for (let place = 0; place < N_PEOPLE; place += 1) assert.equal((await person(place)).outcome, "sent");
  assert.equal((await client.getRound(round.id)).n_received, N_PEOPLE);
  await client.closeRound(round.id);

  const algorithm = { type: "uniform_grid", epsilon: 8, clusters: 2 };
  const told = [];
  const job = await client.createJob({ dataset_id: made.id, round_ids: [round.id], algorithm });
  const over = await job.wait({ timeoutSeconds: 500, onProgress: ({ state }) => told.push(state) });
  assert.equal(over.state, "succeeded", JSON.stringify(over.error));
  assert.equal(told.at(-1), "succeeded");
  assert.deepEqual((await listed(client.listJobs({ datasetId: made.id }))).map(({ id }) => id), [job.id]);

  const { model } = await client.getResult(job.id);
  const [west, east] = model.centroids.map(([x]) => x).sort((a, b) => a - b);
  assert.ok(west < 4 && east > 6, `${west} ${east}`);
  const { labels } = await client.assignPoints(job.id, { points: [[1, 5], [9, 5]] });
  assert.notEqual(labels[0], labels[1]);
  assert.match(await client.getPlot(job.id), /<svg/);
  assert.ok((await client.getLabels(job.id)).labels.length >= 16);
});

test("a list goes on over its pages", async () => {
  const made = await dataset();
  for (let n = 0; n < 205; n += 1) await client.createGrant(made.id, { epsilon: 0.001 });
  const entries = await listed(client.listLedgerEntries(made.id));
  assert.equal(entries.length, 206);
  assert.equal(new Set(entries.map(({ seq }) => seq)).size, 206);
});

test("the same idempotency key makes one job", async () => {
  const made = await dataset();
  const asked = { dataset_id: made.id, algorithm: { type: "uniform_grid", epsilon: 1, clusters: 2 }, target_reports: 100_000 };
  const [first, second] = [await client.createJob(asked, { idempotencyKey: made.id }), await client.createJob(asked, { idempotencyKey: made.id })];
  assert.equal(first.id, second.id);
  const canceled = await client.cancelJob(first.id);
  assert.equal((await canceled.wait({ timeoutSeconds: 120 })).state, "canceled");
});

test("records are uploaded as CSV and counted", async () => {
  const made = await dataset({ trust: "central", epsilon: 1 });
  await client.uploadRecords(made.id, { type: "text/csv", bytes: "east,north\n1,2\n3,4\n" });
  await client.uploadRecords(made.id, { columns: ["east", "north"], rows: [[5, 6]] });
  assert.equal(Object.values(await client.countRecords(made.id)).includes(3), true);
  await client.deleteRecords(made.id);
});

test("problems have their codes and what belongs to them", async () => {
  const made = await dataset({ epsilon: 1 });
  const round = { encoding: { type: "grid", cells: [2, 2] }, epsilon: 2, target_reports: 100 };
  const refused = async (call, code) => assert.rejects(call, (error) => error instanceof ApiProblem && error.code === code);
  await assert.rejects(client.createRound(made.id, round), (error) => {
    assert.deepEqual([error.status, error.code, error.problem.granted], [409, "budget_exhausted", 1]);
    return true;
  });
  await refused(new Client({ url, key: "sfk_nobody" }).getDataset(made.id), "unauthenticated");
  await client.deleteDataset(made.id);
  await refused(client.getDataset(made.id), "not_found");
});

test("what was changed meanwhile is not changed again", async () => {
  const made = await dataset();
  assert.equal((await client.updateDataset(made.id, { name: "renamed" })).name, "renamed");
  const late = client.updateDataset(made.id, { name: "late" }, { ifMatch: '"of-before"' });
  await assert.rejects(late, (error) => error.code === "precondition_failed");
  assert.ok((await listed(client.listAuditEvents({ query: { dataset_id: made.id } }))).length >= 1);
  assert.ok((await client.getLimits()) instanceof Object);
});
