/** Tests of sealed reports with the published vectors. */

import assert from "node:assert/strict";
import test from "node:test";

import { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";

import { InvalidSpec } from "../dist/index.js";
import { roundInfo, seal, wrap } from "../dist/sealing.js";
import { loadVectors } from "./vectors.mjs";

const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });
const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const hex = (buffer) => Buffer.from(buffer).toString("hex");
const cases = loadVectors("sealed");

async function open(sealed, { private_key, round_id, round }) {
  const recipientKey = await suite.kem.deserializePrivateKey(bytes(private_key).buffer);
  const info = (await roundInfo(round_id, bytes(round))).buffer;
  return hex(await suite.open({ recipientKey, enc: sealed.slice(0, 32).buffer, info }, sealed.slice(32).buffer));
}

function plaintext({ report_id, slot, value }) {
  return report_id + slot.toString(16).padStart(8, "0") + value;
}

test("the library reproduces RFC 9180, appendix A.1.1", async () => {
  const { publicKey } = await suite.kem.deriveKeyPair(bytes("6db9df30aa07dd42ee5e8181afdb977e538f5e1fec8a06223f33f7013e525037").buffer);
  const ekm = bytes("7268600d403fce431561aef583ee1613527cff655c1343f29812e66706df3234").buffer;
  const text = (string) => new TextEncoder().encode(string).buffer;
  const sender = await suite.createSenderContext({ recipientPublicKey: publicKey, info: text("Ode on a Grecian Urn"), ekm });
  const sealed = await sender.seal(text("Beauty is truth, truth beauty"), text("Count-0"));
  assert.equal(hex(sender.enc), "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431");
  assert.equal(hex(sealed), "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a");
});

for (const vector of cases) {
  test(`sealed: ${vector.name}`, async () => {
    assert.equal(await open(bytes(vector.sealed), vector), plaintext(vector));
    const recipientPublicKey = await suite.kem.deserializePublicKey(bytes(vector.public_key).buffer);
    const info = (await roundInfo(vector.round_id, bytes(vector.round))).buffer;
    const sender = await suite.createSenderContext({ recipientPublicKey, info, ekm: bytes(vector.ephemeral_ikm).buffer });
    assert.equal(hex(sender.enc) + hex(await sender.seal(bytes(plaintext(vector)).buffer)), vector.sealed);
    const parts = [bytes(vector.report_id), vector.slot, bytes(vector.value), vector.round_id, bytes(vector.round)];
    const [first, second] = [await seal(...parts, bytes(vector.public_key)), await seal(...parts, bytes(vector.public_key))];
    assert.notEqual(hex(first), hex(second));
    assert.equal(first.length, 68 + vector.value.length / 2);
    assert.equal(await open(first, vector), plaintext(vector));
    await assert.rejects(open(first, { ...vector, round_id: "rnd_other" }));
  });

  test(`outer layer: ${vector.name}`, async () => {
    const recipientKey = await suite.kem.deserializePrivateKey(bytes(vector.outer_private_key).buffer);
    const recipientPublicKey = await suite.kem.deserializePublicKey(bytes(vector.outer_public_key).buffer);
    const info = new TextEncoder().encode(`sfumato outer layer 1${vector.round_id}`).buffer;
    const remove = async (wrapped) => hex(await suite.open({ recipientKey, enc: wrapped.slice(0, 32).buffer, info }, wrapped.slice(32).buffer));
    assert.equal(await remove(bytes(vector.wrapped)), vector.sealed);
    const sender = await suite.createSenderContext({ recipientPublicKey, info, ekm: bytes(vector.outer_ephemeral_ikm).buffer });
    assert.equal(hex(sender.enc) + hex(await sender.seal(bytes(vector.sealed).buffer)), vector.wrapped);
    const arguments_ = [bytes(vector.sealed), vector.round_id, bytes(vector.outer_public_key)];
    const [first, second] = [await wrap(...arguments_), await wrap(...arguments_)];
    assert.notEqual(hex(first), hex(second));
    assert.equal(first.length, 48 + vector.sealed.length / 2);
    assert.equal(await remove(first), vector.sealed);
  });
}

test("arguments out of range and unsafe keys are refused", async () => {
  const [id, value, round, key] = [new Uint8Array(16), new Uint8Array(1), new Uint8Array(0), bytes(cases[0].public_key)];
  const bad = [
    [id.slice(1), 0, value, "r", round, key],
    [id, -1, value, "r", round, key],
    [id, 2 ** 32, value, "r", round, key],
    [id, 0.5, value, "r", round, key],
    [id, 0, value, "r", round, key.slice(1)],
    [id, 0, value, "r", round, new Uint8Array(32)],
  ];
  for (const parts of bad) await assert.rejects(seal(...parts), InvalidSpec);
  for (const unsafe of [key.slice(1), new Uint8Array(32)]) await assert.rejects(wrap(value, "r", unsafe), InvalidSpec);
});
