/** Tests of the client: requests match the OpenAPI document, retries are idempotent, and lists and jobs are followed. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { ApiProblem, Client, InvalidSpec, JobTimeout, Unreachable } from "../dist/client.js";
import { problemResponse } from "./vectors.mjs";

const document = JSON.parse(readFileSync(new URL("../../../openapi/openapi.json", import.meta.url), "utf8"));
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), ...operation })),
);
const id = (prefix) => `${prefix}_01jd0b1v3tq5c9m8x2h7r4k6ez`;
const JOB = { id: id("job"), state: "running" };

/** A fake service that returns the replies in order, repeats the last one, and records requests. */
class Script {
  constructor(...replies) {
    this.replies = replies;
    this.sent = [];
    this.fetch = async (url, init) => {
      const { method, headers, body } = init;
      this.sent.push({ url: new URL(url), method, headers, body });
      const reply = this.replies.length > 1 ? this.replies.shift() : this.replies[0];
      if (reply instanceof Error) throw reply;
      return typeof reply === "function" ? reply(init) : reply.clone();
    };
  }

  client(options = {}) {
    return new Client({ url: "http://service.example/", key: "sfk_analyst", fetch: this.fetch, ...options });
  }

  keys() {
    return this.sent.map(({ headers }) => headers["Idempotency-Key"]);
  }
}

const json = (body, status = 200, headers = {}) => Response.json(body, { status, headers });
const page = (items, next_cursor = null) => json({ items, next_cursor });

// ---- every operation ----

// Operations that `Client` omits: probes for the operator, rounds for `Device`, releases, which a shuffler sends, and the
// event stream, for which `wait` polls.
const OMITTED = new Set(["getHealth", "getReadiness", "getDeviceRounds", "releaseRound", "streamJobEvents"]);
const PREFIXES = { dataset_id: "ds", round_id: "rnd", job_id: "job", key_id: "key", webhook_id: "whk", delivery_id: "dlv" };
const covered = operations.filter(({ operationId }) => !OMITTED.has(operationId));

test("all omitted operations are in the OpenAPI document", () => {
  assert.ok(covered.length >= 40);
  assert.equal(operations.length - covered.length, OMITTED.size);
});

for (const operation of covered) {
  test(`${operation.operationId} sends the request of the OpenAPI document`, async () => {
    const named = operation.path.match(/(?<=\{)\w+/g) ?? [];
    const ids = named.map((name) => id(PREFIXES[name]));
    const status = Object.keys(operation.responses).find((code) => code.startsWith("2"));
    const reply = operation.operationId.startsWith("list") ? { items: [], next_cursor: null } : { ...JOB, secret: "sfk_x" };
    const script = new Script(() => (status === "204" ? new Response(null, { status: 204 }) : json(reply, Number(status))));
    const which = operation.operationId === "deleteRecords" ? [{ all: true }] : [];
    const parameters = operation.requestBody === undefined ? [...ids, ...which] : [...ids, { marker: 1 }];
    const call = script.client()[operation.operationId](...parameters);
    if (operation.operationId.startsWith("list")) for await (const item of call) assert.fail(item);
    else await call;
    assert.equal(script.sent.length, 1);
    const [{ url, method, headers, body }] = script.sent;
    assert.equal(method, operation.method);
    assert.equal(url.pathname, operation.path.replace(/\{(\w+)\}/g, (_, name) => id(PREFIXES[name])));
    assert.equal(headers.Authorization, "Bearer sfk_analyst");
    assert.equal(body, operation.requestBody === undefined ? null : '{"marker":1}');
    const takesKey = (operation.parameters ?? []).some((parameter) => parameter.name === "Idempotency-Key");
    assert.equal("Idempotency-Key" in headers, takesKey);
    const known = (operation.parameters ?? []).filter((parameter) => parameter.in === "query").map(({ name }) => name);
    assert.deepEqual([...url.searchParams.keys()].filter((name) => !known.includes(name)), []);
  });
}

// ---- retries ----

test("a write is retried with the same idempotency key and the same bytes after its response was lost", async () => {
  const script = new Script(new TypeError("the connection broke"), problemResponse(503, "unavailable"), json(JOB, 202));
  const job = await script.client().createJob({ dataset_id: id("ds") });
  assert.equal(job.id, JOB.id);
  assert.equal(script.sent.length, 3);
  assert.equal(new Set(script.keys()).size, 1);
  assert.match(script.keys()[0], /^[0-9a-f]{32}$/);
  assert.equal(new Set(script.sent.map(({ body }) => body)).size, 1);
});

test("each write has a new idempotency key unless the caller passes one", async () => {
  const script = new Script(json(JOB, 202));
  const client = script.client();
  await client.createJob({});
  await client.createJob({});
  await client.createJob({}, { idempotencyKey: "lunch-1" });
  const [first, second, own] = script.keys();
  assert.notEqual(first, second);
  assert.equal(own, "lunch-1");
});

test("the client obeys Retry-After unless it exceeds retrySeconds", async () => {
  const rateLimited = (seconds) => json({ code: "rate_limited" }, 429, { "Retry-After": String(seconds) });
  const early = new Script(rateLimited(0.4), json(JOB));
  const start = performance.now();
  await early.client().getJob(JOB.id);
  assert.ok(performance.now() - start >= 390);
  const late = new Script(rateLimited(3600));
  await assert.rejects(late.client({ retrySeconds: 5 }).getJob(JOB.id), (error) => error instanceof ApiProblem && error.status === 429);
  assert.equal(late.sent.length, 1);
});

test("a rejected request is not retried", async () => {
  const script = new Script(problemResponse(409, "budget_exhausted", { granted: 2, charged: 1.5 }));
  await assert.rejects(script.client().createJob({}), (error) => {
    assert.ok(error instanceof ApiProblem);
    assert.deepEqual([error.code, error.problem.granted, error.problem.charged], ["budget_exhausted", 2, 1.5]);
    return true;
  });
  assert.equal(script.sent.length, 1);
});

test("a service that does not respond causes Unreachable", async () => {
  const script = new Script(new TypeError("no connection"));
  await assert.rejects(script.client({ retrySeconds: 0 }).getJob(JOB.id), Unreachable);
});

test("an abort ends the call and its retries with the reason of the caller", async () => {
  const script = new Script(json({ code: "unavailable" }, 503, { "Retry-After": "20" }));
  const controller = new AbortController();
  const reason = new Error("the page was left");
  setTimeout(() => controller.abort(reason), 50);
  await assert.rejects(script.client().getJob(JOB.id, { signal: controller.signal }), (error) => error === reason);
  assert.equal(script.sent.length, 1);
});

// ---- ids and responses ----

test("a malformed id is rejected before a request is sent", async () => {
  const script = new Script(json(JOB));
  for (const bad of ["", "..", "a/b", "x?y", "é", "a".repeat(65), undefined, 7]) {
    await assert.rejects(script.client().getJob(bad), InvalidSpec);
  }
  assert.equal(script.sent.length, 0);
});

test("a response that is not a page is rejected", async () => {
  for (const wrong of [json({ items: 3, next_cursor: null }), json({ items: [] }), json([]), new Response("<html>")]) {
    const listed = new Script(wrong).client().listDatasets();
    await assert.rejects(listed.next(), (error) => error.code === "unexpected_response");
  }
});

test("a body of another media type is sent unchanged", async () => {
  const script = new Script(json({}, 201));
  await script.client().uploadRecords(id("ds"), { type: "text/csv", bytes: "x,y\n1,2\n" });
  assert.equal(script.sent[0].headers["Content-Type"], "text/csv");
  assert.equal(script.sent[0].body, "x,y\n1,2\n");
});

test("an SVG plot is returned as text", async () => {
  const script = new Script(new Response("<svg/>", { headers: { "Content-Type": "image/svg+xml" } }));
  assert.equal(await script.client().getPlot(JOB.id), "<svg/>");
  assert.equal(script.sent[0].headers.Accept, "image/svg+xml");
});

test("a PNG plot is returned as bytes", async () => {
  const bytes = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0xff, 0x00]);
  const script = new Script(new Response(bytes, { headers: { "Content-Type": "image/png" } }));
  assert.deepEqual(await script.client().getPlotPng(JOB.id), bytes);
  assert.equal(script.sent[0].headers.Accept, "image/png");
});

// ---- pages ----

test("a list requests each page when its first item is needed", async () => {
  const script = new Script(page([1, 2], "after-2"), page([], "after-none"), page([3]));
  const seen = [];
  for await (const item of script.client().listDatasets()) {
    seen.push([item, script.sent.length]);
  }
  assert.deepEqual(seen, [[1, 1], [2, 1], [3, 3]]);
  assert.deepEqual(script.sent.map(({ url }) => url.searchParams.get("cursor")), [null, "after-2", "after-none"]);
});

test("a list requests no page after an early exit or after a repeated cursor", async () => {
  const exited = new Script(page([1, 2], "more"));
  for await (const item of exited.client().listKeys()) if (item === 1) break;
  assert.equal(exited.sent.length, 1);
  const repeated = new Script(page([1], "same"));
  const seen = [];
  for await (const item of repeated.client().listKeys()) seen.push(item);
  assert.deepEqual(seen, [1, 1]);
});

test("a list sends its filter with every page", async () => {
  const script = new Script(page([1], "next"), page([2]));
  for await (const item of script.client().listJobs({ datasetId: id("ds") })) assert.ok(item);
  assert.deepEqual(script.sent.map(({ url }) => url.searchParams.get("dataset_id")), [id("ds"), id("ds")]);
});

// ---- jobs ----

test("waiting for a job uses long polls until it ends", async () => {
  const script = new Script(json(JOB, 202), json(JOB), json({ ...JOB, state: "collecting" }), json({ ...JOB, state: "succeeded" }));
  const job = await script.client().createJob({});
  assert.deepEqual(JSON.parse(JSON.stringify(job)), JOB); // a job serialises as plain JSON
  assert.equal((await job.wait()).state, "succeeded");
  assert.deepEqual(script.sent.slice(1).map(({ url }) => url.searchParams.get("wait")), ["30", "30", "30"]);
});

test("onProgress receives the job, the last time when it ends", async () => {
  const script = new Script(json(JOB), json({ ...JOB, state: "failed" }));
  const states = [];
  await script.client().waitForJob(JOB.id, { onProgress: ({ state }) => states.push(state) });
  assert.deepEqual(states, ["running", "failed"]);
  assert.equal(script.sent[0].url.searchParams.get("wait"), "1");
});

test("JobTimeout contains the last known state of the job", async () => {
  const script = new Script(json(JOB));
  await assert.rejects(script.client().waitForJob(JOB.id, { timeoutSeconds: 0.2 }), (error) => {
    assert.ok(error instanceof JobTimeout);
    assert.equal(error.job.state, "running");
    return true;
  });
  assert.ok(script.sent.length >= 2);
});

// ---- uploads ----

test("a large body has a longer timeout", async () => {
  const late = () => new Promise((resolve) => setTimeout(() => resolve(json({ id: "upl_1" }, 201)), 300));
  const client = new Script(late).client({ timeoutSeconds: 0.1, retrySeconds: 0 });
  const upload = (size) => client.uploadRecords(id("ds"), { type: "text/csv", bytes: new Uint8Array(size) });
  await assert.rejects(upload(1), Unreachable);
  assert.equal((await upload(1 << 20)).id, "upl_1");
});

// ---- secrets ----

test("createKey revokes a key without a known secret and creates another one", async () => {
  const lost = { id: id("key"), secret: null };
  const script = new Script(json(lost, 201), new Response(null, { status: 204 }), json({ id: "key_2", secret: "sfk_new" }, 201));
  const created = await script.client().createKey({ name: "app", scopes: ["device"] });
  assert.equal(created.secret, "sfk_new");
  assert.deepEqual(script.sent.map(({ method }) => method), ["POST", "DELETE", "POST"]);
  assert.equal(new Set([script.keys()[0], script.keys()[2]]).size, 2);
});

test("rotateKey rotates a key without a known secret again without overlap", async () => {
  const script = new Script(json({ id: "key_2", secret: null }, 201), json({ id: "key_3", secret: "sfk_new" }, 201));
  const created = await script.client().rotateKey("key_1", { overlap_seconds: 3600 });
  assert.equal(created.id, "key_3");
  assert.deepEqual(script.sent.map(({ url, body }) => [url.pathname, JSON.parse(body).overlap_seconds]), [
    ["/v1/keys/key_1/rotate", 3600],
    ["/v1/keys/key_2/rotate", 0],
  ]);
});
