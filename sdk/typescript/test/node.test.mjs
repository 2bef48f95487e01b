/** Tests of the file store: durable memory and locking between processes. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs, { existsSync, linkSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, statSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Device, StoreUnusable } from "../dist/index.js";
import { acquire } from "../dist/lock.js";
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

test("whatever a process or a full disk left beside the file does not block a change", async (context) => {
  const path = scratch(context);
  const change = (draw) => new FileStore(path).change("ds_1", (memory) => { memory.draws.c = draw; });
  await change("1");
  for (const left of [`${path}.lock`, `${path}.lock.takeover`, `${path}.new`, `${path}.locks/8`, `${path}.locks/new-0`]) {
    for (const text of ["", String(process.pid), String(process.ppid), "4194303"]) {
      writeFileSync(left, text);
      await change(`7${text}`);
      assert.equal((await new FileStore(path).read("ds_1")).draws.c, `7${text}`);
    }
  }
  mkdirSync(`${path}.locks/1000`);
  await change("3");
  await change("4");
  assert.equal((await new FileStore(path).read("ds_1")).draws.c, "4");
});

test("two living processes never hold the lock, whatever else is killed or paused", async (context) => {
  const path = scratch(context);
  const [owner, counter] = [`${dirname(path)}/owner`, new FileStore(path)];
  await counter.change("ds_1", () => undefined);
  // A holder writes its token and finds it unchanged at the end. Each counted change is printed.
  const program = `
    import { readFileSync, writeFileSync } from "node:fs";
    import { setTimeout as sleep } from "node:timers/promises";
    import { acquire } from ${JSON.stringify(new URL("../dist/lock.js", import.meta.url).href)};
    import { FileStore } from ${JSON.stringify(new URL("../dist/node.js", import.meta.url).href)};
    const [path, owner] = ${JSON.stringify([path, owner])};
    const store = new FileStore(path);
    for (let n = 0; ; n += 1) {
      const held = await acquire(path + ".test", 20_000);
      const token = process.pid + "-" + n;
      writeFileSync(owner, token);
      await sleep(Math.random() * 2);
      console.log(readFileSync(owner, "utf8") === token ? "held" : "SHARED");
      held.release();
      await store.change("ds_1", (memory) => { memory.draws.c = String(Number(memory.draws.c ?? 0) + 1); });
      console.log("counted");
    }`;
  const lines = [];
  const start = () => {
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
    child.stdout.on("data", (data) => lines.push(...String(data).trim().split("\n")));
    child.ended = new Promise((resolve) => child.on("close", resolve));
    return child;
  };
  const children = Array.from({ length: 4 }, start);
  let nKilled = 0;
  while (lines.length < 200 || nKilled < 6) {
    await sleep(20 + Math.random() * 60);
    const place = Math.floor(Math.random() * children.length);
    const child = children[place];
    if (Math.random() < 0.5) {
      child.kill("SIGSTOP");
      setTimeout(() => child.kill("SIGCONT"), 30);
    } else if (lines.length > 20) {
      nKilled += 1;
      child.kill("SIGKILL");
      await child.ended;
      children[place] = start();
    }
  }
  for (const child of children) child.kill("SIGKILL");
  await Promise.all(children.map(({ ended }) => ended));
  const [nShared, nCounted] = ["SHARED", "counted"].map((text) => lines.filter((line) => line === text).length);
  const stored = Number((await counter.read("ds_1")).draws.c);
  assert.equal(nShared, 0);
  assert.ok(nCounted <= stored && stored <= nCounted + nKilled + children.length, `${stored} ${nCounted} ${nKilled}`);
  await counter.change("ds_1", () => undefined);
});

test("a process that was paused before it took the lock does not hold it beside a later process", async (context) => {
  const directory = `${scratch(context)}.locks`;
  mkdirSync(directory, { recursive: true });
  const link = fs.linkSync;
  const linked = [];
  context.after(() => { fs.linkSync = link; syncBuiltinESMExports(); });
  fs.linkSync = (path, target) => {
    if (linked.length === 0) writeFileSync(join(directory, "9"), ""); // meanwhile other processes came to this number
    linked.push(basename(target));
    link(path, target);
  };
  syncBuiltinESMExports();
  const held = await acquire(directory, 1000);
  assert.deepEqual(linked, ["1", "10"]);
  assert.equal(await acquire(directory, 100), undefined);
  held.release();
  (await acquire(directory, 1000)).release();
  assert.deepEqual(readdirSync(directory), ["11"]);
});

test("a store keeps to its file when the working directory or a link changes", async (context) => {
  const home = dirname(dirname(scratch(context)));
  const before = process.cwd();
  context.after(() => process.chdir(before));
  const [app, volume, other] = ["app", "volume", "other"].map((name) => join(home, name));
  for (const path of [app, volume, other]) mkdirSync(path);
  const draw = (store, value) => store.change("ds_1", (memory) => { memory.draws.c = value; });
  process.chdir(app);
  const relative = new FileStore("device.json");
  process.chdir(other);
  await draw(relative, "1");
  assert.equal(relative.location, join(realpathSync(app), "device.json"));
  assert.deepEqual([existsSync("device.json"), existsSync(relative.location)], [false, true]);

  // A link to a file that does not exist yet, in a directory that does not exist yet, and a link to a directory.
  symlinkSync("../volume/deep/memory.json", join(app, "link.json"));
  symlinkSync(volume, join(other, "folder"));
  const [first, second] = [new FileStore(join(app, "link.json")), new FileStore("folder/deep/memory.json")];
  assert.equal(first.location, second.location);
  await draw(first, "2");
  await draw(second, "3");
  assert.equal((await first.read("ds_1")).draws.c, "3");
  assert.ok(lstatSync(join(app, "link.json")).isSymbolicLink());
  assert.deepEqual(readdirSync(app).filter((name) => !name.startsWith("device")), ["link.json"]);

  unlinkSync(join(app, "link.json"));
  symlinkSync(join(other, "memory.json"), join(app, "link.json"));
  await draw(first, "4");
  assert.ok(!existsSync(join(other, "memory.json")));
});

test("a path that names no single file is refused", async (context) => {
  const directory = dirname(dirname(scratch(context)));
  symlinkSync("loop", join(directory, "loop"));
  for (const path of [join(directory, "loop"), ""]) assert.throws(() => new FileStore(path), StoreUnusable);
  for (const path of [undefined, 7]) assert.throws(() => new FileStore(path), (error) => error.code === "validation_failed");
  const store = new FileStore(join(directory, "one.json"));
  await store.change("ds_1", (memory) => { memory.draws.c = "1"; });
  linkSync(join(directory, "one.json"), join(directory, "two.json"));
  await assert.rejects(store.change("ds_1", () => undefined), /2 hard links/);
  await assert.rejects(new FileStore(directory).change("ds_1", () => undefined), StoreUnusable);
});

test("a path that is too long for a socket works", async (context) => {
  const path = join(dirname(scratch(context)), "long".repeat(20), "path".repeat(20), "memory.json");
  await Promise.all([1, 2, 3].map(() => new FileStore(path).change("ds_1", (memory) => { memory.draws.c = String(Number(memory.draws.c ?? 0) + 1); })));
  assert.equal((await new FileStore(path).read("ds_1")).draws.c, "3");
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
