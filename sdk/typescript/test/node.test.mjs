/** Tests of the file store: durable memory and locking between processes. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { Device, StoreUnusable } from "../dist/index.js";
import { FileStore } from "../dist/node.js";
import { ScriptedService, loadVectors } from "./vectors.mjs";

const [{ calls }] = loadVectors("devices");
const { open, record } = calls[0];

function scratch(context) {
  const directory = mkdtempSync(join(tmpdir(), "sfumato-"));
  context.after(() => rmSync(directory, { recursive: true }));
  return join(directory, "deeper", "memory.json");
}

test("a restarted device keeps its memory", async (context) => {
  const path = scratch(context);
  const service = new ScriptedService(...open.rounds);
  const device = () => new Device(service.options({ store: new FileStore(path) }));
  assert.equal((await device().report(record)).outcome, "sent");
  assert.equal((await device().report(record)).outcome, "already_answered");
  assert.equal(service.sent.length, 1);
  assert.equal(await device().spent(), open.rounds[0].epsilon);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.ok(!readFileSync(path, "utf8").includes(String(record[0])));
});

test("a device with a damaged file sends no report", async (context) => {
  const path = scratch(context);
  const service = new ScriptedService(...open.rounds);
  await new Device(service.options({ store: new FileStore(path) })).report(record);
  const whole = readFileSync(path, "utf8");
  for (const text of ["", "{", "[]", '{"ds_1": 3}', whole.replace('"version": 1', '"version": 2'), whole.slice(0, -9), whole.replace(/"epsilonNano": "\d+"/, '"epsilonNano": "-1"')]) {
    writeFileSync(path, text);
    await assert.rejects(new Device(service.options({ store: new FileStore(path) })).report(record), StoreUnusable);
  }
  assert.equal(service.sent.length, 1);
});

test("a change that throws leaves the memory unchanged and releases the lock", async (context) => {
  const store = new FileStore(scratch(context));
  const failing = store.change("ds_1", (memory) => { memory.draws.c = "1"; throw new Error("no"); });
  await assert.rejects(failing, /no/);
  assert.deepEqual((await store.read("ds_1")).draws, {});
  await store.change("ds_1", (memory) => { memory.draws.c = "2"; });
  assert.deepEqual((await store.read("ds_1")).draws, { c: "2" });
});

test("the lock of an ended process is taken over", async (context) => {
  const path = scratch(context);
  const store = new FileStore(path);
  await store.change("ds_1", (memory) => { memory.draws.c = "1"; });
  const ended = spawn(process.execPath, ["-e", ""]);
  await new Promise((resolve) => ended.on("exit", resolve));
  writeFileSync(`${path}.lock`, String(ended.pid));
  await store.change("ds_1", (memory) => { memory.draws.c = "2"; });
  assert.deepEqual((await store.read("ds_1")).draws, { c: "2" });
});

test("concurrent changes by several processes are all stored", async (context) => {
  const path = scratch(context);
  const program = `
    import { FileStore } from ${JSON.stringify(new URL("../dist/node.js", import.meta.url).href)};
    const store = new FileStore(${JSON.stringify(path)});
    for (let n = 0; n < 20; n += 1) {
      await store.change("ds_1", (memory) => { memory.draws.c = String(Number(memory.draws.c ?? 0) + 1); });
    }`;
  const ends = Array.from({ length: 3 }, () => {
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: "inherit" });
    return new Promise((resolve) => child.on("exit", resolve));
  });
  assert.deepEqual(await Promise.all(ends), [0, 0, 0]);
  assert.equal((await new FileStore(path).read("ds_1")).draws.c, "60");
});
