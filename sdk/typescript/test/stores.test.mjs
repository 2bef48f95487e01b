/** Tests of the stores of browsers and phones: faults of the platform become StoreUnusable, and lost connections are opened again. */

import assert from "node:assert/strict";
import test from "node:test";

import { AsyncStorageStore, IndexedDbStore, StoreUnusable } from "../dist/index.js";

const draw = (store, value) => store.change("ds_1", (memory) => { memory.draws.c = value; return value; });
const drawn = async (store) => (await store.read("ds_1")).draws.c;

/** A database whose connections can break. `breaks` names what fails next. */
class FakeIndexedDb {
  saved = new Map();
  connections = [];
  breaks = [];

  open() {
    if (this.takeBreak("open throws")) throw new DOMException("denied", "SecurityError");
    const request = {};
    const fails = this.takeBreak("open fails");
    setTimeout(() => {
      if (fails) {
        request.error = new DOMException("full", "QuotaExceededError");
        return request.onerror();
      }
      request.result = this.connect();
      request.onsuccess();
    });
    return request;
  }

  takeBreak(name) {
    if (this.breaks[0] !== name) return false;
    this.breaks.shift();
    return true;
  }

  connect() {
    const connection = {
      isClosed: false,
      close: () => { connection.isClosed = true; },
      transaction: (_, mode) => {
        if (connection.isClosed) throw new DOMException("closing", "InvalidStateError");
        if (this.takeBreak("transaction throws")) throw new DOMException("Connection to Indexed Database server lost", "UnknownError");
        return this.transact(mode);
      },
    };
    this.connections.push(connection);
    return connection;
  }

  transact(mode) {
    const changes = new Map();
    const transaction = { error: null };
    let isAborted = false;
    transaction.abort = (error = null) => {
      if (isAborted) throw new DOMException("finished", "InvalidStateError");
      isAborted = true;
      transaction.error = error;
      setTimeout(() => transaction.onabort());
    };
    transaction.objectStore = () => ({
      get: (key) => {
        const request = { error: null };
        setTimeout(() => {
          if (this.takeBreak("get fails")) {
            request.error = new DOMException("lost", "UnknownError");
            request.onerror();
            return transaction.abort(request.error);
          }
          request.result = structuredClone(this.saved.get(key));
          request.onsuccess();
          if (this.takeBreak("commit fails")) return transaction.abort(new DOMException("full", "QuotaExceededError"));
          setTimeout(() => {
            if (isAborted) return;
            for (const [name, value] of changes) this.saved.set(name, value);
            transaction.oncomplete();
          });
        });
        return request;
      },
      put: (value, key) => {
        if (mode !== "readwrite") throw new DOMException("read only", "ReadOnlyError");
        if (this.takeBreak("put throws")) throw new DOMException("closing", "InvalidStateError");
        changes.set(key, structuredClone(value));
      },
    });
    return transaction;
  }
}

function createDatabase(context) {
  const database = new FakeIndexedDb();
  globalThis.indexedDB = database;
  context.after(() => { delete globalThis.indexedDB; });
  return database;
}

test("a platform without IndexedDB is named", async (context) => {
  context.after(() => { delete globalThis.indexedDB; });
  for (const missing of [undefined, null]) {
    globalThis.indexedDB = missing;
    await assert.rejects(new IndexedDbStore().read("ds_1"), (error) => error instanceof StoreUnusable && /FileStore on Node.js/.test(error.message));
  }
  Object.defineProperty(globalThis, "indexedDB", { configurable: true, get() { throw new DOMException("denied", "SecurityError"); } });
  await assert.rejects(draw(new IndexedDbStore(), "1"), (error) => error instanceof StoreUnusable && /SecurityError/.test(error.message));
});

test("a connection that the browser closed is opened again", async (context) => {
  const database = createDatabase(context);
  const store = new IndexedDbStore();
  await draw(store, "1");
  database.connections[0].close();
  database.connections[0].onclose();
  assert.equal(await drawn(store), "1");
  database.connections[1].close(); // without an event
  await draw(store, "2");
  assert.equal(await drawn(store), "2");
  assert.equal(database.connections.length, 3);
});

test("a store gives way when the app deletes the database", async (context) => {
  const database = createDatabase(context);
  const store = new IndexedDbStore();
  await draw(store, "1");
  database.connections[0].onversionchange();
  assert.ok(database.connections[0].isClosed);
  database.saved.clear();
  assert.equal(await drawn(store), undefined);
});

for (const fault of ["transaction throws", "get fails"]) {
  test(`if ${fault}, the store opens the database again, once, and runs a change once`, async (context) => {
    const database = createDatabase(context);
    const store = new IndexedDbStore();
    database.breaks = [fault];
    let nCalls = 0;
    await store.change("ds_1", (memory) => { nCalls += 1; memory.draws.c = "1"; });
    database.breaks = [fault];
    assert.equal(await drawn(store), "1");
    assert.equal(nCalls, 1);
    database.breaks = [fault, fault];
    await assert.rejects(draw(store, "2"), (error) => error instanceof StoreUnusable && /UnknownError/.test(error.message));
    assert.equal(await draw(store, "3"), "3");
  });
}

for (const fault of ["open throws", "open fails", "put throws", "commit fails"]) {
  test(`if ${fault}, a change fails with StoreUnusable and changes nothing`, async (context) => {
    const database = createDatabase(context);
    await draw(new IndexedDbStore(), "1");
    const store = new IndexedDbStore();
    database.breaks = [fault];
    await assert.rejects(draw(store, "2"), StoreUnusable);
    assert.equal(await drawn(store), "1");
    assert.equal(await draw(store, "3"), "3");
  });
}

test("an error of the change itself reaches the caller", async (context) => {
  createDatabase(context);
  const store = new IndexedDbStore();
  await assert.rejects(store.change("ds_1", () => { throw new RangeError("a mistake"); }), RangeError);
});

test("a database that never opens is an error after ten seconds, and is closed if it opens later", async (context) => {
  const database = createDatabase(context);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const request = {};
  database.open = () => request;
  const reading = new IndexedDbStore().read("ds_1");
  context.mock.timers.tick(10_000);
  await assert.rejects(reading, StoreUnusable);
  request.result = database.connect();
  request.onsuccess();
  assert.ok(request.result.isClosed);
});

class FakeAsyncStorage {
  texts = new Map();
  fails = false;

  async getItem(key) {
    if (this.fails) throw new Error("disk");
    return this.texts.get(key) ?? null;
  }

  async setItem(key, text) {
    await new Promise((resolve) => setTimeout(resolve));
    if (this.fails) throw new Error("disk");
    this.texts.set(key, text);
  }
}

test("AsyncStorage keeps the memory, and changes of two stores exclude each other", async () => {
  const storage = new FakeAsyncStorage();
  const add = (store) => store.change("ds_1", (memory) => { memory.draws.c = String(Number(memory.draws.c ?? 0) + 1); });
  const [first, second, other] = [new AsyncStorageStore(storage), new AsyncStorageStore(storage), new AsyncStorageStore(storage, "other")];
  await Promise.all([first, second, first, second, other].map(add));
  assert.deepEqual([await drawn(first), await drawn(other)], ["4", "1"]);
  assert.deepEqual((await first.read("ds_2")).memos, {});
});

test("an AsyncStorage that fails or has a damaged memory is StoreUnusable", async () => {
  const storage = new FakeAsyncStorage();
  const store = new AsyncStorageStore(storage);
  await draw(store, "1");
  storage.fails = true;
  await assert.rejects(draw(store, "2"), StoreUnusable);
  await assert.rejects(store.read("ds_1"), StoreUnusable);
  storage.fails = false;
  assert.equal(await drawn(store), "1");
  await assert.rejects(store.change("ds_1", () => { throw new RangeError("a mistake"); }), RangeError);
  for (const text of ["", "{", "null", "7", '{"version": 2}']) {
    storage.texts.set("sfumato:ds_1", text);
    await assert.rejects(draw(store, "2"), StoreUnusable);
  }
});
