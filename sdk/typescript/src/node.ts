/** A store for programs on node: one JSON file, replaced whole and synced at every change. */

import { closeSync, constants, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { isObject } from "./checks.js";
import { StoreUnusable } from "./errors.js";
import { checkedMemory, emptyMemory, type Memory, type Store } from "./store.js";

const LOCK_WAIT_MILLISECONDS = 20;
const LOCK_PATIENCE_MILLISECONDS = 10_000;

/**
 * One JSON file, readable by its owner alone.
 *
 * A lock file beside it, which names the process that holds it, keeps two processes of one app
 * apart; one whose process is gone is taken over. The draws in the file are secret: whoever knows
 * them knows which rounds the device was asked in. Copying the file to a second device, or putting
 * an old backup back, lets one record be perturbed twice.
 */
export class FileStore implements Store {
  readonly #path: string;
  readonly #lockPath: string;

  /** @param path The file; made at the first change, with its directory. */
  constructor(path: string) {
    this.#path = path;
    this.#lockPath = `${path}.lock`;
  }

  async read(datasetId: string): Promise<Memory> {
    return this.#load()[datasetId] ?? emptyMemory(); // replaced whole, so there is nothing to wait for
  }

  async change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    await this.#lock();
    try {
      const memories = this.#load();
      const memory = memories[datasetId] ?? emptyMemory();
      const before = JSON.stringify(memory);
      const done = change(memory);
      if (JSON.stringify(memory) !== before) this.#save({ ...memories, [datasetId]: memory });
      return done;
    } finally {
      rmSync(this.#lockPath, { force: true });
    }
  }

  async #lock(): Promise<void> {
    const deadline = Date.now() + LOCK_PATIENCE_MILLISECONDS;
    this.#attempt(() => mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 }));
    while (!this.#attempt(() => this.#tryLock())) {
      if (Date.now() > deadline) throw new StoreUnusable(`${this.#lockPath} is held by another process; if none runs, remove it and ${this.#lockPath}.takeover`);
      await sleep(LOCK_WAIT_MILLISECONDS);
    }
  }

  #tryLock(): boolean {
    try {
      write(this.#lockPath, String(process.pid), false);
      return true;
    } catch (error) {
      if (codeOf(error) !== "EEXIST") throw error;
    }
    if (!this.#isHolderGone()) return false;
    // Only who holds the guard removes a dead process's lock, so nobody removes one that was just taken anew.
    const guard = `${this.#lockPath}.takeover`;
    try {
      write(guard, String(process.pid), false);
    } catch (error) {
      if (codeOf(error) !== "EEXIST") throw error;
      return false;
    }
    try {
      if (this.#isHolderGone()) rmSync(this.#lockPath, { force: true });
    } finally {
      rmSync(guard, { force: true });
    }
    return false;
  }

  /** Our own pid is another store of this process, or one long gone whose number came round: it is waited for. */
  #isHolderGone(): boolean {
    const holder = Number(readOrNothing(this.#lockPath) ?? NaN);
    return Number.isInteger(holder) && holder > 0 && holder !== process.pid && !isAlive(holder);
  }

  #load(): Record<string, Memory> {
    const text = this.#attempt(() => readOrNothing(this.#path));
    if (text === undefined) return {};
    let document: unknown;
    try {
      document = JSON.parse(text);
    } catch {
      document = undefined;
    }
    if (!isObject(document)) {
      throw new StoreUnusable(`${this.#path} is damaged: not knowing what it answered, this device answers nothing`);
    }
    return Object.fromEntries(Object.entries(document).map(([datasetId, stored]) => [datasetId, checkedMemory(stored)]));
  }

  #save(memories: Record<string, Memory>): void {
    this.#attempt(() => {
      const fresh = `${this.#path}.new`;
      rmSync(fresh, { force: true }); // what a crash may have left
      write(fresh, JSON.stringify(memories, null, 1), true);
      renameSync(fresh, this.#path);
      const directory = openSync(dirname(this.#path), constants.O_RDONLY);
      try {
        fsyncSync(directory); // or a power cut could bring the old file back
      } finally {
        closeSync(directory);
      }
    });
  }

  #attempt<T>(work: () => T): T {
    try {
      return work();
    } catch (error) {
      throw new StoreUnusable(`${this.#path} cannot be used: ${codeOf(error) ?? "unknown"}`);
    }
  }
}

function write(path: string, text: string, sync: boolean): void {
  const file = openSync(path, "wx", 0o600);
  try {
    for (let bytes = Buffer.from(text); bytes.length > 0; ) bytes = bytes.subarray(writeSync(file, bytes));
    if (sync) fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

function readOrNothing(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) !== "ESRCH";
  }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error && "code" in error ? String(error.code) : undefined;
}
