/** A device answers a round once, and resends the same bytes until it is acknowledged. */

import assert from "node:assert/strict";
import test from "node:test";

import { ApiProblem, Device, MemoryStore, RoundRefused, StoreUnusable, Unreachable } from "../dist/index.js";
import { ScriptedService, refusal, vectors } from "./vectors.mjs";

const [{ calls }] = vectors("devices");
const ROUND = calls[0].open.rounds[0];
const RECORD = calls[0].record;
const another = (id) => ({ ...ROUND, id, collection_id: id });

function world(...rounds) {
  const service = new ScriptedService(...(rounds.length ? rounds : [ROUND]));
  const store = new MemoryStore();
  return { service, store, device: (changes) => new Device(service.options({ store, ...changes })) };
}

test("a report whose answer was lost is sent again with the same bytes", async () => {
  const { service, device } = world();
  service.replies.push(new TypeError("the connection broke"));
  await assert.rejects(device().report(RECORD), Unreachable);
  assert.deepEqual(await device().pending(), [ROUND.id]);
  const receipt = await device().report([0, 0]);
  assert.equal(receipt.outcome, "sent");
  assert.equal(service.sent.length, 2);
  assert.equal(service.sent[0].body, service.sent[1].body);
  assert.deepEqual(await device().pending(), []);
});

test("within one call it tries again, as long as it was told", async () => {
  const { service, device } = world();
  service.replies.push(new TypeError("broke"), refusal(503, "unavailable"), refusal(429, "rate_limited"));
  assert.equal((await device({ retrySeconds: 20 }).report(RECORD)).outcome, "sent");
  assert.equal(new Set(service.sent.map(({ body }) => body)).size, 1);
  assert.equal(service.sent.length, 4);
});

test("a retry that the service wants later than there is time for is not made", async () => {
  const { service, device } = world();
  const patient = Response.json({ code: "unavailable" }, { status: 503, headers: { "Retry-After": "3600" } });
  service.replies.push(patient);
  await assert.rejects(device({ retrySeconds: 5 }).report(RECORD), (error) => error instanceof ApiProblem && error.status === 503);
  assert.equal(service.sent.length, 1);
  assert.deepEqual(await device().pending(), [ROUND.id]);
});

test("a round that closed was charged and is over", async () => {
  const { service, device } = world();
  service.replies.push(refusal(409, "round_closed"));
  assert.equal((await device().report(RECORD)).outcome, "too_late");
  assert.deepEqual(await device().pending(), []);
  assert.equal(await device().spent(), ROUND.epsilon);
});

test("a report the service does not take is not sent again; a key it does not know may be", async () => {
  for (const [status, code, pending] of [[422, "report_malformed", 0], [401, "unauthenticated", 1]]) {
    const { service, device } = world();
    service.replies.push(refusal(status, code));
    await assert.rejects(device().report(RECORD), (error) => error.code === code);
    assert.equal((await device().pending()).length, pending);
  }
});

test("what one round refuses does not keep another from being answered", async () => {
  const { service, device } = world({ ...another("rnd_bad"), epsilon: 0.1 }, ROUND);
  const receipt = await device().report(RECORD);
  assert.equal(receipt.outcome, "sent");
  assert.ok(receipt.rounds[0].error instanceof RoundRefused);
  assert.deepEqual(service.sent.map(({ id }) => id), [ROUND.id]);
});

test("a round with other features than the app was built for is refused", async () => {
  const features = ROUND.spec.features;
  const narrower = features.map((feature) => ({ ...feature, upper: feature.upper / 2 }));
  await assert.rejects(world().device({ features: narrower }).report(RECORD), RoundRefused);
  assert.equal((await world().device({ features }).report(RECORD)).outcome, "sent");
});

test("the list of rounds is asked for with its ETag, and 304 means the same", async () => {
  const { service, device } = world();
  const one = device();
  assert.equal((await one.report(RECORD)).outcome, "sent");
  assert.equal((await one.report(RECORD)).outcome, "already_answered");
  assert.equal(service.asked[0]["If-None-Match"], undefined);
  assert.ok(service.asked[1]["If-None-Match"]);
  service.rounds = [];
  assert.deepEqual(await one.report(RECORD), { outcome: "no_open_round", rounds: [], retryAfterSeconds: 17 });
});

test("the cap holds whatever is asked at once", async () => {
  const many = Array.from({ length: 9 }, (_, n) => another(`rnd_${n}`));
  const { service, device } = world(...many);
  const receipt = await device({ cap: 4 }).report(RECORD);
  assert.equal(service.sent.length, 4);
  assert.equal(receipt.rounds.filter(({ error }) => error?.code === "cap_exceeded").length, 5);
  assert.equal(await device({ cap: 4 }).spent(), 4);
});

test("two calls at once answer a round once", async () => {
  const { service, store, device } = world();
  await Promise.all([device().report(RECORD), device().report([1, 1])]);
  assert.equal(new Set(service.sent.map(({ body }) => body)).size, 1);
  assert.equal(Object.keys((await store.read("ds_1")).memos).length, 1);
});

test("a memory that cannot be read answers nothing", async () => {
  const { service } = world();
  const broken = { read: async () => assert.fail(), change: async () => { throw new StoreUnusable("gone"); } };
  await assert.rejects(new Device(service.options({ store: broken })).report(RECORD), StoreUnusable);
  assert.equal(service.sent.length, 0);
});

test("an id that every object has names no round", async () => {
  for (const id of ["constructor", "toString", "hasOwnProperty"]) {
    const { service, device } = world({ ...another(id) });
    assert.equal((await device().report(RECORD)).outcome, "sent");
    assert.equal(service.sent.length, 1);
  }
  await assert.rejects(world({ ...another("__proto__") }).device().report(RECORD), (error) => error.code === "validation_failed");
});

test("no error quotes a value", async () => {
  const secret = 48.858844;
  for (const record of [[secret], [secret, NaN], { lon: secret }, [secret, "48.858844"]]) {
    await assert.rejects(world().device().report(record), (error) => {
      assert.equal(error.code, "point_invalid");
      assert.ok(!`${error.message}${error.stack}`.includes("48.85"));
      return true;
    });
  }
});

test("an answer that is no list of rounds is refused", async () => {
  for (const body of ["[]", '{"rounds": 3}', '{"rounds": [3]}', "nonsense", `{"rounds": ${JSON.stringify(Array(65).fill(ROUND))}}`, `{"rounds": ${JSON.stringify([ROUND, ROUND])}}`, " ".repeat(1 << 21)]) {
    const { device } = world();
    const fetch = async () => new Response(body, { headers: { "Content-Type": "application/json" } });
    await assert.rejects(device({ fetch }).report(RECORD), (error) => ["validation_failed", "unexpected_answer"].includes(error.code));
  }
});

test("the key and the reports go nowhere else", async () => {
  const { service, device } = world();
  const seen = [];
  const fetch = (url, init) => { seen.push(init); return service.fetch(url, init); };
  await device({ fetch }).report(RECORD);
  assert.equal(seen.length, 2);
  for (const init of seen) {
    assert.deepEqual([init.redirect, init.credentials, init.cache, init.referrerPolicy], ["error", "omit", "no-store", "no-referrer"]);
    assert.equal(init.headers.Authorization, "Bearer sfk_device");
  }
});
