/** Tests of the package against a running service, set by SFUMATO_URL and SFUMATO_KEY. */

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

async function createDataset(changes = {}) {
  return client.createDataset({ name: "people", trust: "local", epsilon: 8, min_reports: 100, features: FEATURES, ...changes });
}

async function collect(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

test("devices send reports and an analyst receives clusters", async () => {
  const created = await createDataset();
  const encoding = { type: "grid", cells: [4, 4] };
  const round = await client.createRound(created.id, { encoding, epsilon: 8, target_reports: N_PEOPLE });
  const app = await client.createKey({ name: "app", scopes: ["device"], dataset_id: created.id });
  const report = (person) => {
    const device = new Device({ url, key: app.secret, datasetId: created.id, cap: 8, store: new MemoryStore(), features: FEATURES });
    return device.report({ east: person < N_PEOPLE / 2 ? 1 : 9, north: 5 });
  };
  for (let person = 0; person < N_PEOPLE; person += 1) assert.equal((await report(person)).outcome, "sent");
  assert.equal((await client.getRound(round.id)).n_received, N_PEOPLE);
  await client.closeRound(round.id);

  const algorithm = { type: "uniform_grid", epsilon: 8, clusters: 2 };
  const states = [];
  const job = await client.createJob({ dataset_id: created.id, round_ids: [round.id], algorithm });
  const ended = await job.wait({ timeoutSeconds: 500, onProgress: ({ state }) => states.push(state) });
  assert.equal(ended.state, "succeeded", JSON.stringify(ended.error));
  assert.equal(states.at(-1), "succeeded");
  assert.deepEqual((await collect(client.listJobs({ datasetId: created.id }))).map(({ id }) => id), [job.id]);

  const { model } = await client.getResult(job.id);
  const [west, east] = model.centroids.map(([x]) => x).sort((a, b) => a - b);
  assert.ok(west < 4 && east > 6, `${west} ${east}`);
  const { labels } = await client.assignPoints(job.id, { points: [[1, 5], [9, 5]] });
  assert.notEqual(labels[0], labels[1]);
  assert.match(await client.getPlot(job.id), /<svg/);
  assert.ok((await client.getLabels(job.id)).labels.length >= 16);
});

test("a list continues over several pages", async () => {
  const created = await createDataset();
  for (let n = 0; n < 205; n += 1) await client.createGrant(created.id, { epsilon: 0.001 });
  const entries = await collect(client.listLedgerEntries(created.id));
  assert.equal(entries.length, 206);
  assert.equal(new Set(entries.map(({ seq }) => seq)).size, 206);
});

test("the same idempotency key creates one job", async () => {
  const created = await createDataset();
  const body = { dataset_id: created.id, algorithm: { type: "uniform_grid", epsilon: 1, clusters: 2 }, target_reports: 100_000 };
  const [first, second] = [await client.createJob(body, { idempotencyKey: created.id }), await client.createJob(body, { idempotencyKey: created.id })];
  assert.equal(first.id, second.id);
  const canceled = await client.cancelJob(first.id);
  assert.equal((await canceled.wait({ timeoutSeconds: 120 })).state, "canceled");
});

test("records are uploaded as CSV and counted", async () => {
  const created = await createDataset({ trust: "central", epsilon: 1 });
  await client.uploadRecords(created.id, { type: "text/csv", bytes: "east,north\n1,2\n3,4\n" });
  await client.uploadRecords(created.id, { columns: ["east", "north"], rows: [[5, 6]] });
  assert.equal(Object.values(await client.countRecords(created.id)).includes(3), true);
  await client.deleteRecords(created.id, { all: true });
});

test("problems contain their code and members", async () => {
  const created = await createDataset({ epsilon: 1 });
  const round = { encoding: { type: "grid", cells: [2, 2] }, epsilon: 2, target_reports: 100 };
  const rejectsWith = async (call, code) => assert.rejects(call, (error) => error instanceof ApiProblem && error.code === code);
  await assert.rejects(client.createRound(created.id, round), (error) => {
    assert.deepEqual([error.status, error.code, error.problem.granted], [409, "budget_exhausted", 1]);
    return true;
  });
  await rejectsWith(new Client({ url, key: "sfk_unknown" }).getDataset(created.id), "unauthenticated");
  await client.deleteDataset(created.id);
  await rejectsWith(client.getDataset(created.id), "not_found");
});

test("an update with an outdated ETag is rejected", async () => {
  const created = await createDataset();
  assert.equal((await client.updateDataset(created.id, { name: "renamed" })).name, "renamed");
  const late = client.updateDataset(created.id, { name: "late" }, { ifMatch: '"outdated"' });
  await assert.rejects(late, (error) => error.code === "precondition_failed");
  assert.ok((await collect(client.listAuditEvents({ query: { dataset_id: created.id } }))).length >= 1);
  assert.ok((await client.getLimits()) instanceof Object);
});
