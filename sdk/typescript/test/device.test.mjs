/** Tests of a device: it answers a round once and resends the same bytes until the service acknowledges them. */

import assert from "node:assert/strict";
import test from "node:test";

import { ApiProblem, Device, MemoryStore, RoundRefused, StoreUnusable, Unreachable } from "../dist/index.js";
import { ScriptedService, loadVectors, problemResponse } from "./vectors.mjs";

const [{ calls }] = loadVectors("devices");
const ROUND = calls[0].open.rounds[0];
const RECORD = calls[0].record;
const roundWithId = (id) => ({ ...ROUND, id, collection_id: id });

function createScene(...rounds) {
  const service = new ScriptedService(...(rounds.length ? rounds : [ROUND]));
  const store = new MemoryStore();
  return { service, store, device: (changes) => new Device(service.options({ store, ...changes })) };
}

test("a report is resent with the same bytes after its response was lost", async () => {
  const { service, device } = createScene();
  service.replies.push(new TypeError("the connection broke"));
  await assert.rejects(device().report(RECORD), Unreachable);
  assert.deepEqual(await device().pending(), [ROUND.id]);
  const receipt = await device().report([0, 0]);
  assert.equal(receipt.outcome, "sent");
  assert.equal(service.sent.length, 2);
  assert.equal(service.sent[0].body, service.sent[1].body);
  assert.deepEqual(await device().pending(), []);
});

test("a call retries until retrySeconds have passed", async () => {
  const { service, device } = createScene();
  service.replies.push(new TypeError("the connection broke"), problemResponse(503, "unavailable"), problemResponse(429, "rate_limited"));
  assert.equal((await device({ retrySeconds: 20 }).report(RECORD)).outcome, "sent");
  assert.equal(new Set(service.sent.map(({ body }) => body)).size, 1);
  assert.equal(service.sent.length, 4);
});

test("a call does not retry if Retry-After exceeds retrySeconds", async () => {
  const { service, device } = createScene();
  const late = problemResponse(503, "unavailable");
  late.headers.set("Retry-After", "3600");
  service.replies.push(late);
  await assert.rejects(device({ retrySeconds: 5 }).report(RECORD), (error) => error instanceof ApiProblem && error.status === 503);
  assert.equal(service.sent.length, 1);
  assert.deepEqual(await device().pending(), [ROUND.id]);
});

test("a report to a closed round counts as spent and is not pending", async () => {
  const { service, device } = createScene();
  service.replies.push(problemResponse(409, "round_closed"));
  assert.equal((await device().report(RECORD)).outcome, "too_late");
  assert.deepEqual(await device().pending(), []);
  assert.equal(await device().spent(), ROUND.epsilon);
});

test("a rejected report is not resent, but a report with an unknown key stays pending", async () => {
  for (const [status, code, pending] of [[422, "report_malformed", 0], [401, "unauthenticated", 1]]) {
    const { service, device } = createScene();
    service.replies.push(problemResponse(status, code));
    await assert.rejects(device().report(RECORD), (error) => error.code === code);
    assert.equal((await device().pending()).length, pending);
  }
});

test("a refused round does not prevent a report to another round", async () => {
  const { service, device } = createScene({ ...roundWithId("rnd_bad"), epsilon: 0.1 }, ROUND);
  const receipt = await device().report(RECORD);
  assert.equal(receipt.outcome, "sent");
  assert.ok(receipt.rounds[0].error instanceof RoundRefused);
  assert.deepEqual(service.sent.map(({ id }) => id), [ROUND.id]);
});

test("a round with unexpected features is refused", async () => {
  const features = ROUND.spec.features;
  const narrower = features.map((feature) => ({ ...feature, upper: feature.upper / 2 }));
  await assert.rejects(createScene().device({ features: narrower }).report(RECORD), RoundRefused);
  assert.equal((await createScene().device({ features }).report(RECORD)).outcome, "sent");
});

test("the device sends the ETag of the round list and reuses the list on 304", async () => {
  const { service, device } = createScene();
  const device1 = device();
  assert.equal((await device1.report(RECORD)).outcome, "sent");
  assert.equal((await device1.report(RECORD)).outcome, "already_answered");
  assert.equal(service.roundRequests[0]["If-None-Match"], undefined);
  assert.ok(service.roundRequests[1]["If-None-Match"]);
  service.rounds = [];
  assert.deepEqual(await device1.report(RECORD), { outcome: "no_open_round", rounds: [], outside: [], retryAfterSeconds: 17 });
});

test("the cap limits the total cost of simultaneous rounds", async () => {
  const many = Array.from({ length: 9 }, (_, n) => roundWithId(`rnd_${n}`));
  const { service, device } = createScene(...many);
  const receipt = await device({ cap: 4 }).report(RECORD);
  assert.equal(service.sent.length, 4);
  assert.equal(receipt.rounds.filter(({ error }) => error?.code === "cap_exceeded").length, 5);
  assert.equal(await device({ cap: 4 }).spent(), 4);
});

test("two concurrent calls answer a round once", async () => {
  const { service, store, device } = createScene();
  await Promise.all([device().report(RECORD), device().report([1, 1])]);
  assert.equal(new Set(service.sent.map(({ body }) => body)).size, 1);
  assert.equal(Object.keys((await store.read("ds_1")).memos).length, 1);
});

test("five concurrent calls of one device send one report", async () => {
  const { service, device } = createScene();
  const one = device();
  const receipts = await Promise.all(Array.from({ length: 5 }, () => one.report(RECORD)));
  assert.equal(service.sent.length, 1);
  assert.deepEqual(receipts.map(({ outcome }) => outcome), ["sent", ...Array(4).fill("already_answered")]);
});

test("a call waits for an earlier one that fails, and pending reports are sent once", async () => {
  const { service, device } = createScene();
  const one = device();
  service.replies.push(new TypeError("the connection broke"));
  const results = await Promise.allSettled([one.report(RECORD), one.flush(), one.flush(), one.report(RECORD)]);
  assert.deepEqual(results.map(({ status }) => status), ["rejected", "fulfilled", "fulfilled", "fulfilled"]);
  assert.deepEqual(results.map(({ value }) => value?.length ?? value?.outcome), [undefined, 1, 0, "already_answered"]);
  assert.equal(service.sent.length, 2); // the second is the resent one
});

test("a receipt names the place of the memory", async () => {
  const { device } = createScene();
  assert.equal((await device().report(RECORD)).store, undefined);
  const store = Object.assign(new MemoryStore(), { location: "a place" });
  assert.equal((await device({ store }).report(RECORD)).store, "a place");
});

test("a device with an unreadable memory sends no report", async () => {
  const { service } = createScene();
  const broken = { read: async () => assert.fail(), change: async () => { throw new StoreUnusable("gone"); } };
  await assert.rejects(new Device(service.options({ store: broken })).report(RECORD), StoreUnusable);
  assert.equal(service.sent.length, 0);
});

test("names of inherited object properties work as round ids", async () => {
  for (const id of ["constructor", "toString", "hasOwnProperty"]) {
    const { service, device } = createScene({ ...roundWithId(id) });
    assert.equal((await device().report(RECORD)).outcome, "sent");
    assert.equal(service.sent.length, 1);
  }
  await assert.rejects(createScene({ ...roundWithId("__proto__") }).device().report(RECORD), (error) => error.code === "validation_failed");
});

test("check validates a record, sends nothing and does not use the memory", async () => {
  const { service } = createScene();
  const store = { read: async () => assert.fail(), change: async () => assert.fail() };
  const device = new Device(service.options({ store }));
  const { features } = ROUND.spec;
  assert.deepEqual(await device.check(features.map(({ lower }) => lower)), { outside: [] });
  assert.deepEqual((await device.check(features.map(({ upper }) => upper + 1))).outside, features.map(({ name }) => name));
  await assert.rejects(device.check([NaN]), (error) => error.code === "point_invalid");
  const known = new Device(service.options({ store, features, fetch: async () => assert.fail() }));
  assert.deepEqual((await known.check(features.map(({ lower }) => lower))).outside, []);
  service.rounds = [];
  await assert.rejects(device.check(RECORD), (error) => error.code === "validation_failed");
  assert.equal(service.sent.length, 0);
});

test("check reads the declared attributes without a round about them", async () => {
  const attributes = [{ kind: "categorical", name: "plan", values: ["free", "pro"] }, { kind: "numeric", name: "age", bins: [0, 18, 120] }];
  const { service, device } = createScene();
  const { features } = ROUND.spec;
  const record = { ...Object.fromEntries(features.map(({ name, lower }) => [name, lower])), plan: "pro", age: 3 };
  const { plan, ...rest } = record;
  for (const known of [{}, { features }]) {
    assert.deepEqual(await device({ attributes, ...known }).check(record), { outside: [] });
    for (const wrong of [{ ...record, plan: "gold" }, { ...record, plan: null }, { ...record, age: "old" }, rest, features.map(({ lower }) => lower)]) {
      await assert.rejects(device({ attributes, ...known }).check(wrong), (error) => error.code === "point_invalid" && !error.message.includes("gold"));
    }
  }
  assert.equal(plan, "pro");
  assert.equal(service.sent.length, 0);
});

test("a round with another declaration of an attribute is refused for each value", async () => {
  const { attributes: [, income], calls } = loadVectors("devices").find(({ name }) => name === "a category of phases is answered");
  const round = calls[0].open.rounds[0];
  const { plan, ...rest } = calls[0].record;
  const declared = round.spec.encoding.attributes[0];
  const { service, device } = createScene(round);
  const others = [{ values: declared.values.toReversed() }, { unknown: "refuse" }, { missing: "refuse" }];
  for (const change of others) {
    for (const value of [plan, "gold", null]) {
      const refusing = device({ attributes: [{ ...declared, ...change }, income] });
      await assert.rejects(refusing.report({ ...rest, plan: value }), (error) => error instanceof RoundRefused && error.message.includes("declares otherwise: plan"));
    }
  }
  assert.equal(service.sent.length, 0);
  const receipt = await device({ attributes: [{ ...declared, use: "describe" }, income] }).report(calls[0].record);
  assert.equal(receipt.outcome, "sent");
  for (const wrong of ["plan", 3, null]) {
    assert.throws(() => device({ attributes: [wrong] }), (error) => error.code === "validation_failed" && error.message.includes("must be declared, not named"));
  }
  for (const wrong of ["plan", [declared, declared]]) assert.throws(() => device({ attributes: wrong }), (error) => error.code === "validation_failed");
});

/** A position as browsers return it: its properties are accessors of a prototype, and not its own. */
function createPosition(latitude, longitude) {
  class Coordinates { get latitude() { return latitude; } get longitude() { return longitude; } get accuracy() { return 12; } }
  class GeolocationPosition { get coords() { return new Coordinates(); } get timestamp() { return 1; } }
  return new GeolocationPosition();
}

test("a position has the values of latitude and longitude by name", async () => {
  const place = (east, north) => [{ name: "Lon", lower: east, upper: east + 20 }, { name: "latitude", lower: north, upper: north + 40 }];
  const outside = async (features, position) => {
    const { service, store } = createScene();
    return (await new Device(service.options({ store, features })).check(position)).outside;
  };
  assert.deepEqual(await outside(place(0, 40), createPosition(52.5, 13.4)), []);
  assert.deepEqual(await outside(place(0, 40).reverse(), createPosition(52.5, 13.4)), []);
  assert.deepEqual(await outside(place(0, 40), createPosition(13.4, 52.5)), ["Lon", "latitude"]);
  for (const [east, longitude] of [[170, -178], [170, 179], [-190, 178], [180, -161]]) {
    assert.deepEqual(await outside(place(east, 40), createPosition(60, longitude)), [], `${longitude}`);
  }
  assert.deepEqual(await outside(place(170, 40), createPosition(60, 0)), ["Lon"]);
  const { service, store, device } = createScene();
  const hour = { name: "hour", lower: 0, upper: 24 };
  for (const features of [[...place(0, 40), hour], [place(0, 40)[0], hour], [hour]]) {
    await assert.rejects(new Device(service.options({ store, features })).check(createPosition(50, 1)), (error) => error.code === "point_invalid" && /by feature name/u.test(error.message));
  }
  await assert.rejects(outside(place(0, 40), createPosition(NaN, 1)), (error) => error.code === "point_invalid");
  assert.equal((await device().report(createPosition(48.2, 12.5))).outcome, "sent"); // a round of lon and lat
});

test("a round of places needs the features of the app, for every position", async () => {
  const { features, calls } = loadVectors("devices").find(({ name }) => name === "a place is answered");
  const report = (position, options) => {
    const service = new ScriptedService(...calls[0].open.rounds);
    return new Device(service.options({ store: new MemoryStore(), ...options })).report(position);
  };
  for (const position of [createPosition(-17.7, 178.5), createPosition(95, 178.5), createPosition(-17.7, 999)]) {
    await assert.rejects(report(position), (error) => error instanceof RoundRefused && /Declare the features of the app/u.test(error.message));
  }
  assert.equal((await report(createPosition(-17.7, 178.5), { features })).outcome, "sent");
  await assert.rejects(report(createPosition(95, 178.5), { features }), (error) => error.code === "point_invalid");
});

test("no error message contains a value", async () => {
  const secret = 48.858844;
  for (const record of [[secret], [secret, NaN], { lon: secret }, [secret, "48.858844"]]) {
    await assert.rejects(createScene().device().report(record), (error) => {
      assert.equal(error.code, "point_invalid");
      assert.ok(!`${error.message}${error.stack}`.includes("48.85"));
      return true;
    });
  }
});

test("a response that is not a list of rounds is rejected", async () => {
  for (const body of ["[]", '{"rounds": 3}', '{"rounds": [3]}', "nonsense", `{"rounds": ${JSON.stringify(Array(65).fill(ROUND))}}`, `{"rounds": ${JSON.stringify([ROUND, ROUND])}}`, " ".repeat(1 << 21)]) {
    const { device } = createScene();
    const fetch = async () => new Response(body, { headers: { "Content-Type": "application/json" } });
    await assert.rejects(device({ fetch }).report(RECORD), (error) => ["validation_failed", "unexpected_response"].includes(error.code));
  }
});

test("requests follow no redirect and use no cookies, cache or referrer", async () => {
  const { service, device } = createScene();
  const seen = [];
  const fetch = (url, init) => { seen.push(init); return service.fetch(url, init); };
  await device({ fetch }).report(RECORD);
  assert.equal(seen.length, 2);
  for (const init of seen) {
    assert.deepEqual([init.redirect, init.credentials, init.cache, init.referrerPolicy], ["manual", "omit", "no-store", "no-referrer"]);
    assert.equal(init.headers.Authorization, "Bearer sfk_device");
  }
});
