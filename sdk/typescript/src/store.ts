/**
 * What a device must never forget: its draws, and what it answered to which round.
 *
 * A device that forgets would perturb the same record anew for the same round (averaging takes
 * the noise away) and would not know what it has spent. So every change is stored before
 * anything is sent, and a memory that cannot be read is refused, not begun anew.
 */

import { isObject } from "./checks.js";
import { StoreUnusable } from "./errors.js";

export const STORE_VERSION = 1;

/** Whether the service has the report: not known yet; yes; no, the round had closed; no, it did not take it. */
export type MemoState = "pending" | "acknowledged" | "closed" | "refused";

/** One round this device answered; kept for ever, because what it cost stays spent. */
export interface Memo {
  readonly roundId: string;
  readonly collectionId: string;
  /** What the answer cost: the realised epsilon in nano-epsilon, rounded up; a decimal string. */
  readonly epsilonNano: string;
  /** SHA-256 of the round's spec as it was answered, in hex. */
  readonly specHash: string;
  readonly state: MemoState;
  /** 32 hex digits. */
  readonly reportId: string;
  /** Slot and perturbed value (base64) are dropped once the state is final. */
  readonly slot: number | null;
  readonly value: string | null;
}

/** What a device remembers of one dataset: plain JSON. */
export interface Memory {
  readonly version: typeof STORE_VERSION;
  /** The secret draw of each collection, a decimal string. */
  readonly draws: Record<string, string>;
  /** By round, in the order of answering. */
  readonly memos: Record<string, Memo>;
}

/** Where a device keeps its memories; one store may serve several datasets. */
export interface Store {
  /** A copy of the memory; an empty one for a dataset not seen before. */
  read(datasetId: string): Promise<Memory>;
  /**
   * Hand the memory to `change`, alone, and make what it did to it last.
   *
   * `change` runs once and at once; if it throws, nothing changes. The promise is kept when the
   * change is durable. Rejects with StoreUnusable.
   */
  change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T>;
}

export function emptyMemory(): Memory {
  return { version: STORE_VERSION, draws: {}, memos: {} };
}

/** What this device has answered for so far, in nano-epsilon. */
export function spentNano(memory: Memory): bigint {
  return Object.values(memory.memos).reduce((sum, memo) => sum + BigInt(memo.epsilonNano), 0n);
}

const STATES: readonly unknown[] = ["pending", "acknowledged", "closed", "refused"];

/** A memory as it was stored; throws StoreUnusable for anything else. */
export function checkedMemory(stored: unknown): Memory {
  if (stored === undefined) return emptyMemory();
  const { version, draws, memos } = isObject(stored) ? stored : {};
  const whole = version === STORE_VERSION && isObject(draws) && isObject(memos);
  const sound =
    whole &&
    Object.values(draws).every((draw) => typeof draw === "string" && /^\d{1,20}$/.test(draw)) &&
    Object.entries(memos).every(([roundId, memo]) => isMemo(memo) && memo.roundId === roundId);
  if (!sound) {
    throw new StoreUnusable("the memory is damaged or of another version: not knowing what it answered, this device answers nothing");
  }
  return stored as Memory;
}

function isMemo(memo: unknown): memo is Memo {
  if (!isObject(memo)) return false;
  const { roundId, collectionId, epsilonNano, specHash, state, reportId, slot, value } = memo;
  const texts = [roundId, collectionId, specHash].every((text) => typeof text === "string");
  const cost = typeof epsilonNano === "string" && /^\d{1,20}$/.test(epsilonNano);
  const id = typeof reportId === "string" && /^[0-9a-f]{32}$/.test(reportId);
  const kept = state === "pending" ? typeof value === "string" && typeof slot === "number" : value === null;
  return texts && cost && id && kept && STATES.includes(state);
}

/** Forgets when the page or process ends: for tests, and for devices that answer once and go. */
export class MemoryStore implements Store {
  readonly #memories = new Map<string, Memory>();

  async read(datasetId: string): Promise<Memory> {
    return structuredClone(this.#memories.get(datasetId) ?? emptyMemory());
  }

  async change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    const memory = structuredClone(this.#memories.get(datasetId) ?? emptyMemory());
    const done = change(memory);
    this.#memories.set(datasetId, memory);
    return done;
  }
}

const OBJECTS = "memories";

/**
 * A browser's IndexedDB: one transaction for each change, flushed to disk, so that two tabs of
 * one app never answer the same round twice.
 *
 * The draws in it are secret: whoever knows them knows which rounds the device was asked in.
 * A user who clears the site's data makes the device forget; ask for `navigator.storage.persist()`
 * so that the browser does not clear it by itself.
 */
export class IndexedDbStore implements Store {
  #opened: Promise<IDBDatabase> | undefined;

  /** @param name Of the database; one for each person who uses this browser. */
  constructor(private readonly name = "sfumato") {}

  async read(datasetId: string): Promise<Memory> {
    const database = await this.#open();
    return new Promise((resolve, reject) => {
      const request = database.transaction(OBJECTS, "readonly").objectStore(OBJECTS).get(datasetId);
      request.onsuccess = () => settle(resolve, reject, () => checkedMemory(request.result));
      request.onerror = () => reject(unusable(request.error));
    });
  }

  async change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    const database = await this.#open();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(OBJECTS, "readwrite", { durability: "strict" });
      const objects = transaction.objectStore(OBJECTS);
      let finish = () => reject(unusable(null));
      let failure: unknown;
      const request = objects.get(datasetId);
      request.onsuccess = () => {
        try {
          const memory = checkedMemory(request.result);
          const done = change(memory);
          objects.put(memory, datasetId);
          finish = () => resolve(done);
        } catch (error) {
          failure = error;
          transaction.abort();
        }
      };
      transaction.oncomplete = () => finish();
      transaction.onabort = () => reject(failure ?? unusable(transaction.error));
    });
  }

  /** Let go of the database; the next use opens it again. */
  async close(): Promise<void> {
    const opened = this.#opened;
    this.#opened = undefined;
    (await opened)?.close();
  }

  #open(): Promise<IDBDatabase> {
    this.#opened ??= new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open(this.name, STORE_VERSION);
      request.onupgradeneeded = () => request.result.createObjectStore(OBJECTS);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(unusable(request.error));
      request.onblocked = () => reject(new StoreUnusable("another tab holds an older version of the device's memory open"));
    }).catch((error: unknown) => {
      this.#opened = undefined;
      throw error;
    });
    return this.#opened;
  }
}

function settle<T>(resolve: (value: T) => void, reject: (error: unknown) => void, make: () => T): void {
  try {
    resolve(make());
  } catch (error) {
    reject(error);
  }
}

function unusable(error: DOMException | null): StoreUnusable {
  return new StoreUnusable(`the browser does not keep the device's memory: ${error?.name ?? "the transaction was cut off"}`);
}
