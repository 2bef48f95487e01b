/** The client says what the service's description says, asks again without doing twice, and follows pages and jobs. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { ApiProblem, Client, InvalidSpec, JobTimeout, Unreachable } from "../dist/client.js";
import { refusal } from "./vectors.mjs";

const description = JSON.parse(readFileSync(new URL("../../../openapi/openapi.json", import.meta.url), "utf8"));
const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, told]) => ({ path, method: method.toUpperCase(), ...told })),
);
const id = (prefix) => `${prefix}_01jd0b1v3tq5c9m8x2h7r4k6ez`;
const JOB = { id: id("job"), state: "running" };

/** Answers in turn, the last one for ever; keeps what it was sent. */
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

// Probes are for who runs the service; a device asks for its rounds itself; a job is followed by `wait`.
const ELSEWHERE = new Set(["getHealth", "getReadiness", "getDeviceRounds", "streamJobEvents"]);
const PREFIXES = { dataset_id: "ds", round_id: "rnd", job_id: "job", key_id: "key", webhook_id: "whk", delivery_id: "dlv" };
const covered = operations.filter(({ operationId }) => !ELSEWHERE.has(operationId));

test("what is left out is in the description", () => {
  assert.ok(covered.length >= 40);
  assert.equal(operations.length - covered.length, ELSEWHERE.size);
});

for (const operation of covered) {
  test(`${operation.operationId} asks for what the description says`, async () => {
    const named = operation.path.match(/(?<=\{)\w+/g) ?? [];
    const ids = named.map((name) => id(PREFIXES[name]));
    const status = Object.keys(operation.responses).find((code) => code.startsWith("2"));
    const answer = operation.operationId.startsWith("list") ? { items: [], next_cursor: null } : { ...JOB, secret: "sfk_x" };
    const script = new Script(() => (status === "204" ? new Response(null, { status: 204 }) : json(answer, Number(status))));
    const given = operation.requestBody === undefined ? ids : [...ids, { marker: 1 }];
    const called = script.client()[operation.operationId](...given);
    if (operation.operationId.startsWith("list")) for await (const item of called) assert.fail(item);
    else await called;
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

test("a write whose answer was lost is sent again with the same idempotency key and the same bytes", async () => {
  const script = new Script(new TypeError("the connection broke"), refusal(503, "unavailable"), json(JOB, 202));
  const job = await script.client().createJob({ dataset_id: id("ds") });
  assert.equal(job.id, JOB.id);
  assert.equal(script.sent.length, 3);
  assert.equal(new Set(script.keys()).size, 1);
  assert.match(script.keys()[0], /^[0-9a-f]{32}$/);
  assert.equal(new Set(script.sent.map(({ body }) => body)).size, 1);
});

test("two writes have two keys, and a key of one's own is kept", async () => {
  const script = new Script(json(JOB, 202));
  const client = script.client();
  await client.createJob({});
  await client.createJob({});
  await client.createJob({}, { idempotencyKey: "lunch-1" });
  const [first, second, own] = script.keys();
  assert.notEqual(first, second);
  assert.equal(own, "lunch-1");
});

test("Retry-After is waited for, and not where it ends after there is time", async () => {
  const busy = (seconds) => json({ code: "rate_limited" }, 429, { "Retry-After": String(seconds) });
  const patient = new Script(busy(0.4), json(JOB));
  const began = performance.now();
  await patient.client().getJob(JOB.id);
  assert.ok(performance.now() - began >= 390);
  const late = new Script(busy(3600));
  await assert.rejects(late.client({ retrySeconds: 5 }).getJob(JOB.id), (error) => error instanceof ApiProblem && error.status === 429);
  assert.equal(late.sent.length, 1);
});

test("what was refused is not asked again", async () => {
  const script = new Script(json({ code: "budget_exhausted", title: "no", status: 409, granted: 2, posted: 1.5 }, 409));
  await assert.rejects(script.client().createJob({}), (error) => {
    assert.ok(error instanceof ApiProblem);
    assert.deepEqual([error.code, error.problem.granted, error.problem.posted], ["budget_exhausted", 2, 1.5]);
    return true;
  });
  assert.equal(script.sent.length, 1);
});

test("a service that does not answer is told as such", async () => {
  const script = new Script(new TypeError("nobody there"));
  await assert.rejects(script.client({ retrySeconds: 0 }).getJob(JOB.id), Unreachable);
});

test("an abort ends the call and its retries, with the caller's reason", async () => {
  const script = new Script(json({ code: "unavailable" }, 503, { "Retry-After": "20" }));
  const controller = new AbortController();
  const reason = new Error("the page was left");
  setTimeout(() => controller.abort(reason), 50);
  await assert.rejects(script.client().getJob(JOB.id, { signal: controller.signal }), (error) => error === reason);
  assert.equal(script.sent.length, 1);
});

// ---- ids and answers ----

test("an id that is none is refused before anything is sent", async () => {
  const script = new Script(json(JOB));
  for (const bad of ["", "..", "a/b", "x?y", "é", "a".repeat(65), undefined, 7]) {
    await assert.rejects(script.client().getJob(bad), InvalidSpec);
  }
  assert.equal(script.sent.length, 0);
});

test("an answer that is no page, no JSON or too long is no list", async () => {
  for (const wrong of [json({ items: 3, next_cursor: null }), json({ items: [] }), json([]), new Response("<html>")]) {
    const listed = new Script(wrong).client().listDatasets();
    await assert.rejects(listed.next(), (error) => error.code === "unexpected_answer");
  }
});

test("bytes of another form are sent as they are", async () => {
  const script = new Script(json({}, 201));
  await script.client().uploadRecords(id("ds"), { type: "text/csv", bytes: "x,y\n1,2\n" });
  assert.equal(script.sent[0].headers["Content-Type"], "text/csv");
  assert.equal(script.sent[0].body, "x,y\n1,2\n");
});

test("a picture is text", async () => {
  const script = new Script(new Response("<svg/>", { headers: { "Content-Type": "image/svg+xml" } }));
  assert.equal(await script.client().getPlot(JOB.id), "<svg/>");
  assert.equal(script.sent[0].headers.Accept, "image/svg+xml");
});

test("a picture of pixels is bytes", async () => {
  const bytes = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0xff, 0x00]);
  const script = new Script(new Response(bytes, { headers: { "Content-Type": "image/png" } }));
  assert.deepEqual(await script.client().getPlotPng(JOB.id), bytes);
  assert.equal(script.sent[0].headers.Accept, "image/png");
});

// ---- pages ----

test("a list is every item, page after page, asked for when it is needed", async () => {
  const script = new Script(page([1, 2], "after-2"), page([], "after-none"), page([3]));
  const seen = [];
  for await (const item of script.client().listDatasets()) {
    seen.push([item, script.sent.length]);
  }
  assert.deepEqual(seen, [[1, 1], [2, 1], [3, 3]]);
  assert.deepEqual(script.sent.map(({ url }) => url.searchParams.get("cursor")), [null, "after-2", "after-none"]);
});

test("a list that is left early is not read on, and a cursor that stands still ends it", async () => {
  const left = new Script(page([1, 2], "more"));
  for await (const item of left.client().listKeys()) if (item === 1) break;
  assert.equal(left.sent.length, 1);
  const still = new Script(page([1], "same"));
  const seen = [];
  for await (const item of still.client().listKeys()) seen.push(item);
  assert.deepEqual(seen, [1, 1]);
});

test("what a list is narrowed by stands on every page", async () => {
  const script = new Script(page([1], "next"), page([2]));
  for await (const item of script.client().listJobs({ datasetId: id("ds") })) assert.ok(item);
  assert.deepEqual(script.sent.map(({ url }) => url.searchParams.get("dataset_id")), [id("ds"), id("ds")]);
});

// ---- jobs ----

test("a job is waited for by long polls, until it is over", async () => {
  const script = new Script(json(JOB, 202), json(JOB), json({ ...JOB, state: "collecting" }), json({ ...JOB, state: "succeeded" }));
  const job = await script.client().createJob({});
  assert.deepEqual(JSON.parse(JSON.stringify(job)), JOB); // a job stays plain JSON
  assert.equal((await job.wait()).state, "succeeded");
  assert.deepEqual(script.sent.slice(1).map(({ url }) => url.searchParams.get("wait")), ["30", "30", "30"]);
});

test("who follows a job is told of it, the last time when it is over", async () => {
  const script = new Script(json(JOB), json({ ...JOB, state: "failed" }));
  const told = [];
  await script.client().waitForJob(JOB.id, { onProgress: ({ state }) => told.push(state) });
  assert.deepEqual(told, ["running", "failed"]);
  assert.equal(script.sent[0].url.searchParams.get("wait"), "1");
});

test("a job that is not over in time is told as it was last seen", async () => {
  const script = new Script(json(JOB));
  await assert.rejects(script.client().waitForJob(JOB.id, { timeoutSeconds: 0.2 }), (error) => {
    assert.ok(error instanceof JobTimeout);
    assert.equal(error.job.state, "running");
    return true;
  });
  assert.ok(script.sent.length >= 2);
});

// ---- secrets ----

test("a key whose secret was lost with an answer is revoked, and another made", async () => {
  const lost = { id: id("key"), secret: null };
  const script = new Script(json(lost, 201), new Response(null, { status: 204 }), json({ id: "key_2", secret: "sfk_new" }, 201));
  const made = await script.client().createKey({ name: "app", scopes: ["device"] });
  assert.equal(made.secret, "sfk_new");
  assert.deepEqual(script.sent.map(({ method }) => method), ["POST", "DELETE", "POST"]);
  assert.equal(new Set([script.keys()[0], script.keys()[2]]).size, 2);
});

test("a rotated key whose secret was lost is rotated in turn, at once", async () => {
  const script = new Script(json({ id: "key_2", secret: null }, 201), json({ id: "key_3", secret: "sfk_new" }, 201));
  const made = await script.client().rotateKey("key_1", { overlap_seconds: 3600 });
  assert.equal(made.id, "key_3");
  assert.deepEqual(script.sent.map(({ url, body }) => [url.pathname, JSON.parse(body).overlap_seconds]), [
    ["/v1/keys/key_1/rotate", 3600],
    ["/v1/keys/key_2/rotate", 0],
  ]);
});
