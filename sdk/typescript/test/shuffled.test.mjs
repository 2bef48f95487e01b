/** Tests of the device that reports through a shuffler: what it refuses, what it stores, and what it sends. */

import assert from "node:assert/strict";
import { createHash, generateKeyPairSync, sign } from "node:crypto";
import test from "node:test";

import { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";

import { CapExceeded, Device, InvalidSpec, MemoryStore, RoundRefused, Unreachable } from "../dist/index.js";
import { roundInfo } from "../dist/sealing.js";
import { ShuffledDevice } from "../dist/shuffled.js";
import { loadVectors, problemResponse } from "./vectors.mjs";

const [{ calls }] = loadVectors("devices");
const ROUND = calls[0].open.rounds[0];
const RECORD = calls[0].record;
const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });
const HPKE = await suite.kem.generateKeyPair();
const OUTER = await suite.kem.generateKeyPair();
const OUTER_PUBLIC = Buffer.from(await suite.kem.serializePublicKey(OUTER.publicKey));
const HPKE_PUBLIC = Buffer.from(await suite.kem.serializePublicKey(HPKE.publicKey)).toString("base64");
const SIGNING = generateKeyPairSync("ed25519");
const publicKeyOf = ({ publicKey }) => Buffer.from(publicKey.export({ format: "jwk" }).x, "base64url").toString("base64");

/** A shuffler in memory, whose rounds have these changes. */
class Shuffler {
  constructor(changes = {}, signing = SIGNING) {
    const terms = { min_batch: 100, honest_share: 0.29, keep_reports: false, hpke_public_key: HPKE_PUBLIC };
    this.rounds = new Map([[ROUND.id, JSON.stringify({ ...ROUND, ...terms, ...changes })]]);
    this.signing = signing;
    this.outerKey = OUTER_PUBLIC;
    this.headers = {}; // replacements
    this.sent = [];
    this.replies = [];
  }

  async fetch(url, init) {
    const [, , kind, id, action] = new URL(url).pathname.split("/");
    if (init.method === "POST") {
      assert.equal(action, "sealed");
      this.sent.push({ id, body: Buffer.from(init.body) });
      const reply = this.replies.shift();
      if (reply instanceof Error) throw reply;
      return reply ?? Response.json({ round_id: id, accepted: 1 }, { status: 202 });
    }
    if (kind === "datasets") return Response.json({ rounds: this.listed ?? [...this.rounds.keys()] });
    const body = Buffer.from(this.rounds.get(id));
    const announced = Buffer.concat([Buffer.from(`sfumato round 2${id}`), createHash("sha256").update(body).digest(), this.outerKey]);
    const signature = sign(null, announced, this.signing.privateKey).toString("base64");
    const headers = { "Sfumato-Signature": signature, "Sfumato-Outer-Key": this.outerKey.toString("base64"), ...this.headers };
    return new Response(body, { headers });
  }

  device(store = new MemoryStore(), changes = {}) {
    const pinned = { shufflerKey: publicKeyOf(SIGNING), minHonestBatch: 29 };
    const options = { url: "http://shuffler.example", key: "sfs_x", datasetId: "ds_1", cap: 2, retrySeconds: 0 };
    return new ShuffledDevice({ ...options, ...pinned, store, fetch: (url, init) => this.fetch(url, init), ...changes });
  }
}

/** Return the sealed report of a request, without its outer layer. */
async function unwrap({ id, body }, recipientKey = OUTER.privateKey) {
  const info = new TextEncoder().encode(`sfumato outer layer 1${id}`).buffer;
  const wrapped = new Uint8Array(body);
  return new Uint8Array(await suite.open({ recipientKey, enc: wrapped.slice(0, 32).buffer, info }, wrapped.slice(32).buffer));
}

async function open(shuffler, { id, body }) {
  const info = (await roundInfo(id, Buffer.from(shuffler.rounds.get(id)))).buffer;
  const sealed = await unwrap({ id, body });
  return Buffer.from(await suite.open({ recipientKey: HPKE.privateKey, enc: sealed.slice(0, 32).buffer, info }, sealed.slice(32).buffer));
}

test("a report is sealed for the service and costs the local epsilon", async () => {
  const shuffler = new Shuffler();
  const device = shuffler.device();
  assert.equal((await device.report(RECORD)).outcome, "sent");
  assert.equal((await device.report(RECORD)).outcome, "already_answered");
  assert.equal(shuffler.sent.length, 1);
  const content = await open(shuffler, shuffler.sent[0]);
  assert.equal(content.length, shuffler.sent[0].body.length - 96);
  assert.equal(content.readUInt32BE(16), 0); // the slot
  assert.equal(await device.spent(), ROUND.epsilon);
});

test("a device that is not selected does not read its record", async () => {
  const spec = { ...ROUND.spec, participation: { lo: "18446744073709551615", hi: "18446744073709551616" } };
  assert.equal((await new Shuffler({ spec }).device().report([NaN])).outcome, "not_selected");
});

test("a sealed report is resent in a new outer layer, and the memory has no plain report", async () => {
  const [shuffler, store] = [new Shuffler(), new MemoryStore()];
  shuffler.replies.push(new TypeError("the connection broke"));
  await assert.rejects(shuffler.device(store).report(RECORD), Unreachable);
  const memo = (await store.read("ds_1")).memos[ROUND.id];
  assert.deepEqual([memo.reportId, memo.slot, memo.state], ["", null, "pending"]);
  const sealed = Buffer.from(memo.value, "base64").subarray(32);
  assert.deepEqual(Buffer.from(await unwrap(shuffler.sent[0])), sealed);
  assert.equal((await shuffler.device(store).report([0, 0])).outcome, "sent");
  assert.deepEqual(Buffer.from(await unwrap(shuffler.sent[1])), sealed);
  assert.equal(shuffler.sent[0].body.length, shuffler.sent[1].body.length);
  for (let at = 0; at + 8 <= shuffler.sent[0].body.length; at++) {
    assert.ok(!shuffler.sent[1].body.includes(shuffler.sent[0].body.subarray(at, at + 8)));
  }
  assert.equal((await store.read("ds_1")).memos[ROUND.id].value, null);
});

test("each attempt of one call has a new outer layer", async () => {
  const shuffler = new Shuffler();
  shuffler.replies.push(new TypeError("the connection broke"), new Response("", { status: 503 }));
  assert.equal((await shuffler.device(undefined, { retrySeconds: 30 }).report(RECORD)).outcome, "sent");
  assert.equal(new Set(shuffler.sent.map(({ body }) => body.toString("hex"))).size, 3);
  const sealed = await Promise.all(shuffler.sent.map(async (sent) => Buffer.from(await unwrap(sent)).toString("hex")));
  assert.equal(new Set(sealed).size, 1);
});

test("a report is wrapped for the outer key that the shuffler announces now", async () => {
  const [shuffler, store, renewed] = [new Shuffler(), new MemoryStore(), await suite.kem.generateKeyPair()];
  shuffler.replies.push(new TypeError("the connection broke"));
  await assert.rejects(shuffler.device(store).report(RECORD), Unreachable);
  shuffler.outerKey = Buffer.from(await suite.kem.serializePublicKey(renewed.publicKey));
  assert.equal((await shuffler.device(store).report(RECORD)).outcome, "sent");
  assert.deepEqual(await unwrap(shuffler.sent[0]), await unwrap(shuffler.sent[1], renewed.privateKey));
});

test("outer keys without the signature are refused", async () => {
  for (const name of ["Sfumato-Outer-Key", "Sfumato-Signature"]) {
    for (const value of ["", "?", "AAAA", Buffer.alloc(32, 7).toString("base64")]) {
      const shuffler = new Shuffler();
      shuffler.headers[name] = value;
      await assert.rejects(shuffler.device().report(RECORD), /not signed with the key/);
      assert.deepEqual(shuffler.sent, []);
    }
  }
});

test("a signed outer key that is not valid is refused", async () => {
  const [shuffler, store] = [new Shuffler(), new MemoryStore()];
  shuffler.outerKey = Buffer.alloc(32);
  await assert.rejects(shuffler.device(store).report(RECORD), InvalidSpec);
  assert.deepEqual([shuffler.sent, (await store.read("ds_1")).memos], [[], {}]);
});

test("two devices with one memory send one report", async () => {
  const [shuffler, store] = [new Shuffler(), new MemoryStore()];
  await Promise.all([shuffler.device(store).report(RECORD), shuffler.device(store).report(RECORD)]);
  const sealed = await Promise.all(shuffler.sent.map(async (sent) => Buffer.from(await unwrap(sent)).toString("hex")));
  assert.equal(new Set(sealed).size, 1);
});

test("a report to a closed round counts as spent", async () => {
  const shuffler = new Shuffler();
  shuffler.replies.push(problemResponse(409, "round_closed"));
  const device = shuffler.device();
  assert.equal((await device.report(RECORD)).outcome, "too_late");
  assert.deepEqual([await device.spent(), await device.pending()], [ROUND.epsilon, []]);
});

const refusals = [
  ["fewer honest reports than the device requires", { min_batch: 99 }, RoundRefused],
  ["a smaller honest share", { honest_share: 0.28 }, RoundRefused],
  ["a tiny honest share", { honest_share: 1e-9 }, RoundRefused],
  ["an honest share of zero", { honest_share: 0 }, InvalidSpec],
  ["no honest share", { honest_share: null }, InvalidSpec],
  ["a min_batch that is not a number", { min_batch: "many" }, InvalidSpec],
  ["kept reports", { keep_reports: true }, RoundRefused],
  ["unstated retention", { keep_reports: undefined }, RoundRefused],
  ["a declared epsilon below the cost", { epsilon: 0.1 }, RoundRefused],
  ["a point of small order as key", { hpke_public_key: Buffer.alloc(32).toString("base64") }, InvalidSpec],
  ["a key that is not base64", { hpke_public_key: "?" }, InvalidSpec],
  ["no key", { hpke_public_key: null }, InvalidSpec],
  ["another id than listed", { id: "rnd_other" }, RoundRefused],
  ["a place that the app does not declare", { spec: loadVectors("devices").find(({ name }) => name === "a place is answered").calls[0].open.rounds[0].spec }, RoundRefused],
];
for (const [name, changes, type] of refusals) {
  test(`a round is refused for ${name}; nothing is sent or stored`, async () => {
    const [shuffler, store] = [new Shuffler(changes), new MemoryStore()];
    await assert.rejects(shuffler.device(store).report(RECORD), type);
    assert.deepEqual([shuffler.sent, (await store.read("ds_1")).memos], [[], {}]);
  });
}

test("the cap limits the local epsilon", async () => {
  await assert.rejects(new Shuffler().device(undefined, { cap: ROUND.epsilon / 2 }).report(RECORD), CapExceeded);
});

test("a round that another key signed is refused", async () => {
  const shuffler = new Shuffler({}, generateKeyPairSync("ed25519"));
  await assert.rejects(shuffler.device().report(RECORD), /not signed with the key/);
  assert.deepEqual(shuffler.sent, []);
});

test("a round that has changed since its answer is refused", async () => {
  const [shuffler, store] = [new Shuffler(), new MemoryStore()];
  await shuffler.device(store).report(RECORD);
  const features = ROUND.spec.features.map((feature) => ({ ...feature, upper: 2 * feature.upper }));
  shuffler.rounds.set(ROUND.id, JSON.stringify({ ...JSON.parse(shuffler.rounds.get(ROUND.id)), spec: { ...ROUND.spec, features } }));
  await assert.rejects(shuffler.device(store).report(RECORD), /has changed/);
  assert.equal(shuffler.sent.length, 1);
});

test("lists of rounds that are not valid are refused", async () => {
  for (const listed of ["rnd_1", ["../x"], [1], Array(65).fill("r")]) {
    const shuffler = new Shuffler();
    shuffler.listed = listed;
    await assert.rejects(shuffler.device().report(RECORD), InvalidSpec);
  }
});

test("bad options are refused", () => {
  for (const changes of [{ shufflerKey: "?" }, { shufflerKey: "AAAA" }, { minHonestBatch: 0 }, { minHonestBatch: 0.5 }]) {
    assert.throws(() => new Shuffler().device(undefined, changes), InvalidSpec);
  }
});

test("a device of the service refuses a shuffled round", async () => {
  const fetch = async () => Response.json({ rounds: [{ ...ROUND, hpke_public_key: HPKE_PUBLIC }] });
  const device = new Device({ url: "http://service.example", key: "sfk_x", datasetId: "ds_1", cap: 2, store: new MemoryStore(), fetch });
  await assert.rejects(device.report(RECORD), RoundRefused);
});
