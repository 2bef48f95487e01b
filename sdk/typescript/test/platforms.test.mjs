/** Tests of the package where features of the platform are missing or different, and of mistakes in its options. */

import assert from "node:assert/strict";
import { Readable } from "node:stream";
import test from "node:test";

import { Client } from "../dist/client.js";
import { Aborted, AsyncStorageStore, Device, InvalidSpec, MemoryStore, SfumatoError, SystemEntropy, Unreachable, UnsupportedPlatform } from "../dist/index.js";
import { ScriptedService, loadVectors } from "./vectors.mjs";

const [{ calls }] = loadVectors("devices");
const { open, record } = calls[0];
const LIMIT = 1 << 20; // of the responses that a device reads

const createDevice = (service, changes = {}) => new Device(service.options({ store: new MemoryStore(), ...changes }));

/** Replace properties of a global object until the test ends. */
function replace(context, target, values) {
  for (const [name, value] of Object.entries(values)) {
    const before = Object.getOwnPropertyDescriptor(target, name);
    Object.defineProperty(target, name, { configurable: true, writable: true, value });
    context.after(() => (before === undefined ? delete target[name] : Object.defineProperty(target, name, before)));
  }
}

/** Return a `fetch` whose responses have only these members, made of a normal response. */
const limited = (fetch, makeMembers) => async (url, init) => {
  const response = await fetch(url, init);
  return { status: response.status, ok: response.ok, headers: response.headers, ...makeMembers(response) };
};

const BODIES = {
  "the text of whatwg-fetch and React Native": (response) => ({ text: () => response.text() }),
  "the text of a response with body null": (response) => ({ body: null, text: () => response.text() }),
  "the stream of node-fetch": (response) => ({ body: response.body && Readable.fromWeb(response.body), text: () => assert.fail() }),
  "a stream that cannot be iterated": (response) => ({ body: { pipe() {}, on() {} }, text: () => response.text() }),
  "a web stream": (response) => ({ body: response.body, text: () => assert.fail() }),
};

for (const [name, makeMembers] of Object.entries(BODIES)) {
  test(`a device works with ${name}, and limits the response`, async () => {
    const service = new ScriptedService(...open.rounds);
    assert.equal((await createDevice(service, { fetch: limited(service.fetch, makeMembers) }).report(record)).outcome, "sent");
    const long = async () => new Response(new Blob([" ".repeat(LIMIT + 1)]).stream(), { headers: { "Content-Type": "application/json" } });
    await assert.rejects(createDevice(service, { fetch: limited(long, makeMembers) }).report(record), /longer than 1048576 bytes/);
  });
}

test("a response whose length is stated is refused before it is read", async () => {
  const service = new ScriptedService();
  const fetch = async () => ({ status: 200, ok: true, headers: new Headers({ "Content-Length": String(LIMIT + 1) }), text: () => assert.fail() });
  await assert.rejects(createDevice(service, { fetch }).report(record), /longer than/);
});

test("bytes are read without a stream", async () => {
  const bytes = new Uint8Array([0x89, 0x50, 0xff, 0x00]);
  const fetch = limited(async () => new Response(bytes), (response) => ({ arrayBuffer: () => response.arrayBuffer() }));
  assert.deepEqual(await new Client({ url: "http://service.example", key: "k", fetch }).getPlotPng("job_1"), bytes);
});

// The example of README.md, with what React Native lacks taken away.
test("a device works with what React Native has", async (context) => {
  await Response.json({}).text(); // Node.js loads its own fetch now, with all features
  const texts = new Map();
  const storage = { getItem: async (key) => texts.get(key) ?? null, setItem: async (key, text) => void texts.set(key, text) };
  const service = new ScriptedService(...open.rounds);
  const { crypto } = globalThis;
  const missing = ["structuredClone", "TextDecoder", "TextEncoder", "URL", "atob", "btoa", "performance", "indexedDB", "localStorage", "DOMException"];
  const ParsedUrl = URL; // of the fake service
  const fetch = limited(async (url, init) => service.answer(new ParsedUrl(url), init), BODIES["the text of whatwg-fetch and React Native"]);
  const getRandomValues = (array) => (assert.ok(array instanceof Uint8Array), crypto.getRandomValues(array)); // as react-native-get-random-values
  replace(context, globalThis, { crypto: { getRandomValues } });
  replace(context, globalThis, Object.fromEntries(missing.map((name) => [name, undefined])));
  replace(context, AbortSignal, { timeout: undefined, any: undefined });
  replace(context, AbortSignal.prototype, { throwIfAborted: undefined });
  const device = () => createDevice(service, { fetch, store: new AsyncStorageStore(storage), retrySeconds: 1 });
  assert.equal((await device().report(record)).outcome, "sent");
  assert.equal((await device().report(record)).outcome, "already_answered");
  assert.equal(service.sent.length, 1);
  assert.equal(await device().spent(), open.rounds[0].epsilon);
});

test("a memory that was written with crypto.subtle is not compared without it", async (context) => {
  const service = new ScriptedService(...open.rounds);
  const store = new MemoryStore();
  await createDevice(service, { store }).report(record);
  const { crypto } = globalThis;
  replace(context, globalThis, { crypto: { getRandomValues: (array) => crypto.getRandomValues(array) } });
  await assert.rejects(createDevice(service, { store }).report(record), UnsupportedPlatform);
  const plain = new MemoryStore();
  await createDevice(service, { store: plain }).report(record);
  globalThis.crypto = crypto; // a memory without hashes is compared everywhere
  assert.equal((await createDevice(service, { store: plain }).report(record)).outcome, "already_answered");
  const changed = structuredClone(open.rounds);
  changed[0].spec.features[0].upper *= 2;
  service.rounds = changed;
  await assert.rejects(createDevice(service, { store: plain }).report(record), /has changed/);
  assert.equal(service.sent.length, 2);
});

test("a platform without a random generator or fetch is refused by name", async (context) => {
  const service = new ScriptedService(...open.rounds);
  replace(context, globalThis, { crypto: undefined });
  await assert.rejects(createDevice(service).report(record), (error) => error instanceof UnsupportedPlatform && /react-native-get-random-values/.test(error.message));
  assert.throws(() => new SystemEntropy().words(1), UnsupportedPlatform);
  assert.deepEqual(service.sent, []);
  replace(context, globalThis, { fetch: undefined });
  assert.throws(() => createDevice(service, { fetch: undefined }), (error) => error instanceof UnsupportedPlatform && /fetch/.test(error.message));
});

test("more words than one call of the generator gives are all random", () => {
  const words = new SystemEntropy().words(20_000);
  assert.equal(new Set(words).size, 20_000);
});

// ---- time limits and aborts ----

test("a fetch that ignores its signal is left after the timeout", async (context) => {
  const service = new ScriptedService();
  for (const fetch of [() => new Promise(() => {}), async () => ({ status: 200, ok: true, headers: new Headers(), text: () => new Promise(() => {}) })]) {
    const start = performance.now();
    await assert.rejects(createDevice(service, { fetch, timeoutSeconds: 0.05 }).report(record), (error) => error instanceof Unreachable && /TimeoutError/.test(error.message));
    assert.ok(performance.now() - start < 5000);
  }
  replace(context, globalThis, { AbortController: undefined });
  await assert.rejects(createDevice(service, { fetch: () => new Promise(() => {}), timeoutSeconds: 0.05 }).report(record), Unreachable);
});

test("an abort without a reason is an Aborted error with the platform's error as cause", async () => {
  const client = (fetch) => new Client({ url: "http://service.example", key: "k", fetch });
  const hanging = client((_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))));
  const failing = client(async () => { throw new TypeError("no connection"); });
  for (const each of [hanging, failing]) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 20);
    await assert.rejects(each.getJob("job_1", { signal: controller.signal }), (error) => error instanceof Aborted && error.code === "aborted" && error.cause.name === "AbortError");
    await assert.rejects(each.getJob("job_1", { signal: controller.signal }), Aborted);
  }
});

// ---- redirects and pages of other origins ----

test("a redirect fails at once and names its target", async () => {
  const service = new ScriptedService();
  const headers = { Location: "https://service.example/v1/" };
  const replies = [async () => new Response(null, { status: 301, headers }), async () => ({ status: 200, redirected: true, headers: new Headers(headers) })];
  for (const fetch of replies) {
    await assert.rejects(createDevice(service, { fetch, retrySeconds: 30 }).report(record), /redirected to https:\/\/service.example\/v1\/, and redirects are not followed/);
  }
});

/** Return a `fetch` as a browser has it for a page of an origin that the service does not allow. */
function blockedFetch(seen) {
  return async (url, init) => {
    seen.push(init);
    if (init.mode !== "no-cors") throw new TypeError("Failed to fetch");
    return { type: "opaque", status: 0 };
  };
}

test("a page whose origin is not allowed learns that within seconds", async (context) => {
  const service = new ScriptedService();
  const seen = [];
  replace(context, globalThis, { location: { origin: "https://app.example" } });
  const start = performance.now();
  const device = createDevice(service, { url: "https://service.example", fetch: blockedFetch(seen), retrySeconds: 30 });
  await assert.rejects(device.report(record), (error) => error.code === "unreachable" && /add https:\/\/app.example to SFUMATO_CORS_ORIGINS/.test(error.message));
  assert.ok(performance.now() - start < 10_000);
  for (const init of seen.filter(({ mode }) => mode === "no-cors")) assert.equal(init.headers, undefined); // no key
});

test("a service that does not answer at all is not taken for a blocked one", async (context) => {
  const service = new ScriptedService();
  replace(context, globalThis, { location: { origin: "https://app.example" } });
  const fetch = async () => { throw new TypeError("Failed to fetch"); };
  await assert.rejects(createDevice(service, { url: "https://service.example", fetch }).report(record), /no response/);
});

// ---- mistakes in options ----

const URLS = [
  ["localhost:8000", /pass http:\/\/localhost:8000/],
  ["sfumato.example", /pass https:\/\/sfumato.example/],
  ["ftp://sfumato.example", /pass https:\/\/sfumato.example/],
  ["http://", /must begin/],
  ["", /missing/],
  [undefined, /missing/],
  ["https://sfumato.example/v1", /without \/v1: pass https:\/\/sfumato.example$/],
  ["https://sfumato.example/base/v1/", /pass https:\/\/sfumato.example\/base$/],
  ["https://user:secret@sfumato.example", /no user name/],
  ["user:secret@sfumato.example", /must begin/],
  ["https://sfumato.example?x=1", /query/],
  ["https://sfumato.example ", /space/],
];
for (const [url, message] of URLS) {
  test(`the URL ${url} is refused before a request`, () => {
    for (const make of [() => new Client({ url, key: "k" }), () => new Device(new ScriptedService().options({ url, store: new MemoryStore() }))]) {
      assert.throws(make, (error) => error instanceof InvalidSpec && message.test(error.message) && !error.message.includes("secret"));
    }
  });
}

test("a page on https cannot use a service on http, except on its own machine", (context) => {
  replace(context, globalThis, { location: { origin: "https://app.example" } });
  assert.throws(() => new Client({ url: "http://sfumato.example", key: "k" }), /https URL/);
  for (const url of ["http://localhost:8000", "http://127.0.0.1:8000", "https://sfumato.example"]) new Client({ url, key: "k" });
});

test("a key that no header can contain is refused, and not shown", () => {
  for (const key of ["", undefined, "sfk_secret\n", " sfk_secret", "sfk_sécret"]) {
    assert.throws(() => new Client({ url: "http://service.example", key }), (error) => error instanceof InvalidSpec && !/s.cret/.test(error.message));
  }
});

test("a store that is not one is refused when the device is made", () => {
  for (const store of ["device.json", undefined, null, {}, { read() {} }]) {
    assert.throws(() => new Device(new ScriptedService().options({ store })), (error) => error instanceof InvalidSpec && /FileStore\(path\)/.test(error.message));
  }
});

test("a round with other features names what differs", async () => {
  const { features } = open.rounds[0].spec;
  const [first, second] = features;
  const cases = [
    [[second, first], /its order is lat, lon, not lon, lat|its order is \S+, \S+, not \S+, \S+/],
    [[{ ...first, name: "other" }, second], new RegExp(`it lacks other and it also has ${first.name}`)],
    [[first], new RegExp(`it also has ${second.name}`)],
    [[first, { ...second, upper: 1e6 }], new RegExp(`the bounds, the unit or the shape of ${second.name} differ`)],
  ];
  for (const [expected, message] of cases) {
    const service = new ScriptedService(...open.rounds);
    await assert.rejects(createDevice(service, { features: expected, store: new MemoryStore() }).report(record), message);
  }
});

test("every error of the package is a SfumatoError with a code", async () => {
  const sfumato = await import("../dist/index.js");
  const classes = Object.values(sfumato).filter((each) => typeof each === "function" && each.prototype instanceof Error);
  assert.ok(classes.length >= 11);
  for (const each of classes) assert.ok(each === SfumatoError || each.prototype instanceof SfumatoError);
});
