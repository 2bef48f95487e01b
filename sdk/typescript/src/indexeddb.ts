/** A device memory in the browser's IndexedDB. */

import { StoreUnusable } from "./errors.js";
import { STORE_VERSION, readMemory, type Memory, type Store } from "./store.js";

const OBJECT_STORE = "memories";
const OPEN_MILLISECONDS = 10_000; // some browsers leave a request to open a database without an answer

/**
 * A store in the browser's IndexedDB.
 *
 * Each change is one transaction that is flushed to disk, so two tabs of an app never answer the same round twice. The
 * participation draws in the database are secret, because they reveal in which rounds the device takes part. Call
 * `navigator.storage.persist()`, so that the browser does not delete the database on its own. If the user clears the site
 * data, the device loses its memory.
 *
 * A browser may close the connection to the database at any time, for example while a phone has the page in the background.
 * The store then opens it again. The store closes the connection itself if the app deletes the database.
 */
export class IndexedDbStore implements Store {
  readonly location: string;
  #database: Promise<IDBDatabase> | undefined;

  /** @param name Name of the database. Use one database for each person who uses this browser. */
  constructor(private readonly name = "sfumato") {
    this.location = `IndexedDB ${name}`;
  }

  read(datasetId: string): Promise<Memory> {
    return this.#run("readonly", datasetId, (memory) => memory);
  }

  change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    return this.#run("readwrite", datasetId, change);
  }

  /** Close the database. The next use opens it again. */
  async close(): Promise<void> {
    const database = this.#database;
    this.#database = undefined;
    (await database?.catch(() => undefined))?.close();
  }

  /** Run one transaction. If the connection is lost before `work` is called, open the database again and repeat once. */
  async #run<T>(mode: IDBTransactionMode, datasetId: string, work: (memory: Memory) => T): Promise<T> {
    for (let isFirst = true; ; isFirst = false) {
      const opened = this.#open();
      let hasWorked = false;
      const once = (memory: Memory) => {
        hasWorked = true;
        return work(memory);
      };
      try {
        return await transact(await opened, mode, datasetId, once);
      } catch (error) {
        if (!(error instanceof Lost)) throw error;
        this.#forget(opened);
        if (hasWorked || !isFirst) throw unusable(error.cause);
      }
    }
  }

  #open(): Promise<IDBDatabase> {
    if (this.#database !== undefined) return this.#database;
    const opened = openDatabase(this.name, () => this.#forget(opened));
    this.#database = opened;
    opened.catch(() => this.#forget(opened));
    return opened;
  }

  #forget(opened: Promise<IDBDatabase>): void {
    if (this.#database === opened) this.#database = undefined;
  }
}

/** An error of the browser. The transaction stored nothing. */
class Lost extends Error {
  constructor(override readonly cause: unknown) {
    super("the transaction has failed");
  }
}

/** Run `work` on a memory in one transaction. Reject with Lost for an error of the browser. */
function transact<T>(database: IDBDatabase, mode: IDBTransactionMode, datasetId: string, work: (memory: Memory) => T): Promise<T> {
  return new Promise((resolve, reject) => {
    let result: { readonly value: T } | undefined;
    const fail = (error: unknown) => reject(error instanceof Lost ? error : new Lost(error));
    try {
      const transaction = database.transaction(OBJECT_STORE, mode, { durability: "strict" });
      const objects = transaction.objectStore(OBJECT_STORE);
      const request = objects.get(datasetId);
      request.onerror = () => fail(request.error);
      request.onsuccess = () => {
        let memory: Memory;
        try {
          memory = readMemory(request.result);
          result = { value: work(memory) };
        } catch (error) {
          reject(error); // an error of the memory or of `work`, not of the browser
          abort(transaction);
          return;
        }
        if (mode === "readonly") return resolve(result.value);
        try {
          objects.put(memory, datasetId);
        } catch (error) {
          fail(error);
          abort(transaction);
        }
      };
      transaction.oncomplete = () => (result === undefined ? fail(undefined) : resolve(result.value));
      transaction.onabort = () => fail(transaction.error ?? request.error);
    } catch (error) {
      fail(error);
    }
  });
}

function abort(transaction: IDBTransaction): void {
  try {
    transaction.abort();
  } catch { /* the browser has aborted it already */ }
}

/** Open a database. Call `onClose` when its connection is closed. */
function openDatabase(name: string, onClose: () => void): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    let isLate = false;
    const fail = (error: unknown) => {
      isLate = true;
      clearTimeout(timer);
      reject(error instanceof StoreUnusable ? error : unusable(error));
    };
    const timer = setTimeout(() => fail(new StoreUnusable(`the browser has not opened IndexedDB within ${OPEN_MILLISECONDS / 1000} s; no report was sent`)), OPEN_MILLISECONDS);
    try {
      const factory = globalThis.indexedDB as IDBFactory | null | undefined;
      if (!factory) throw new StoreUnusable("this platform has no IndexedDB: pass another store, for example FileStore on Node.js or AsyncStorageStore in React Native");
      const request = factory.open(name, STORE_VERSION);
      request.onupgradeneeded = () => request.result.createObjectStore(OBJECT_STORE);
      request.onerror = () => fail(request.error);
      request.onblocked = () => fail(new StoreUnusable("another tab uses an older version of the device memory; close it and try again"));
      request.onsuccess = () => {
        const database = request.result;
        if (isLate) return database.close();
        clearTimeout(timer);
        database.onclose = onClose; // by the browser
        database.onversionchange = () => { // by the app, which deletes the database
          database.close();
          onClose();
        };
        resolve(database);
      };
    } catch (error) {
      fail(error);
    }
  });
}

function unusable(error: unknown): StoreUnusable {
  const name = error instanceof Error ? error.name : "the transaction was aborted"; // a DOMException is an Error
  return new StoreUnusable(`the browser could not use the device memory (${name}); no report was sent`);
}
