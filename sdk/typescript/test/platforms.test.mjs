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
    assert.equal((await new Device(service.options({ fetch: limited(service.fetch, makeMembers) }, new MemoryStore())).report(record)).outcome, "sent");
    const long = async () => new Response(new Blob([" ".repeat(LIMIT + 1)]).stream(), { headers: { "Content-Type": "application/json" } });
    await assert.rejects(new Device(service.options({ fetch: limited(long, makeMembers) })).report(record), /longer than 1048576 bytes/);
  });
}

test("a response whose length is stated is refused before it is read", async () => {
  const service = new ScriptedService();
  const fetch = async () => ({ status: 200, ok: true, headers: new Headers({ "Content-Length": String(LIMIT + 1) }), text: () => assert.fail() });
  await assert.rejects(new Device(service.options({ fetch })).report(record), /longer than/);
});

test("bytes are read without a stream", async () => {
  const bytes = new Uint8Array([0x89, 0x50, 0xff, 0x00]);
  const fetch = limited(async () => new Response(bytes), (response) => ({ arrayBuffer: () => response.arrayBuffer() }));
  assert.deepEqual(await new Client({ url: "http://service.example", key: "k", fetch }).getPlotPng("job_1"), bytes);
});

test("a device works with what React Native has", async (context) => {
  const texts = new Map();
  const storage = { getItem: async (key) => texts.get(key) ?? null, setItem: async (key, text) => void texts.set(key, text) };
  const service = new ScriptedService(...open.rounds);
  const getRandomValues = (array) => { // as react-native-get-random-values
    assert.ok(array instanceof Uint8Array);
    return globalThis.crypto.getRandomValues(array);
  };
  const { crypto } = globalThis;
  const missing = ["structuredClone", "TextDecoder", "TextEncoder", "URL", "URLSearchParams", "atob", "btoa", "performance", "indexedDB", "localStorage", "DOMException", "ReadableStream"];
  const fetch = limited(service.fetch, BODIES["the text of whatwg-fetch and React Native"]);
  const parse = URL;
  service.fetch = async (url, init) => service.answer(new parse(url), init);
  replace(context, globalThis, { crypto: { getRandomValues: (array) => (assert.ok(array instanceof Uint8Array), crypto.getRandomValues(array)) } });
  replace(context, globalThis, Object.fromEntries(missing.map((name) => [name, undefined])));
  replace(context, AbortSignal, { timeout: undefined, any: undefined });
  replace(context, AbortSignal.prototype, { throwIfAborted: undefined });
  const device = () => new Device(service.options({ fetch, store: new AsyncStorageStore(storage), retrySeconds: 1 }));
  assert.equal((await device().report(record)).outcome, "sent");
  assert.equal((await device().report(record)).outcome, "already_answered");
  assert.equal(service.sent.length, 1);
  assert.equal(await device().spent(), open.rounds[0].epsilon);
});

