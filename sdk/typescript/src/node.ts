/** A file store for programs on Node.js. */

import { closeSync, constants, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { isObject } from "./checks.js";
import { StoreUnusable } from "./errors.js";
import { createMemory, readMemory, type Memory, type Store } from "./store.js";

const LOCK_POLL_MILLISECONDS = 20;
const LOCK_TIMEOUT_MILLISECONDS = 10_000;

/**
 * A store in one JSON file that only its owner can read.
 *
 * Each change replaces the whole file and syncs it to disk. A lock file next to it contains a process id and prevents
 * concurrent changes by two processes. The lock of an ended process is taken over. The participation draws in the file
 * are secret, because they reveal in which rounds the device takes part. Do not copy the file to a second device or
 * restore an old backup: the device could then perturb one record twice.
 */
export class FileStore implements Store {
  readonly #path: string;
  readonly #lockPath: string;

  /** @param path Path of the file. The first change creates the file and its directory. */
  constructor(path: string) {
    this.#path = path;
    this.#lockPath = `${path}.lock`;
  }

  async read(datasetId: string): Promise<Memory> {
    return this.#load()[datasetId] ?? createMemory(); // needs no lock, because a change replaces the whole file
  }

  async change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    await this.#lock();
    try {
      const memories = this.#load();
      const memory = memories[datasetId] ?? createMemory();
      const before = JSON.stringify(memory);
      const result = change(memory);
      if (JSON.stringify(memory) !== before) this.#save({ ...memories, [datasetId]: memory });
      return result;
    } finally {
      rmSync(this.#lockPath, { force: true });
    }
  }

  async #lock(): Promise<void> {
    const deadline = Date.now() + LOCK_TIMEOUT_MILLISECONDS;
    this.#attempt(() => mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 }));
    while (!this.#attempt(() => this.#tryLock())) {
      if (Date.now() > deadline) throw new StoreUnusable(`another process holds the lock ${this.#lockPath}; if no such process runs, delete it and ${this.#lockPath}.takeover`);
      await sleep(LOCK_POLL_MILLISECONDS);
    }
  }

  #tryLock(): boolean {
    try {
      write(this.#lockPath, String(process.pid), false);
      return true;
    } catch (error) {
      if (codeOf(error) !== "EEXIST") throw error;
    }
    if (!this.#isOwnerGone()) return false;
    // Only the owner of the guard file deletes a stale lock. Otherwise a process could delete a lock that was just created.
    const guard = `${this.#lockPath}.takeover`;
    try {
      write(guard, String(process.pid), false);
    } catch (error) {
      if (codeOf(error) !== "EEXIST") throw error;
      return false;
    }
    try {
      if (this.#isOwnerGone()) rmSync(this.#lockPath, { force: true });
    } finally {
      rmSync(guard, { force: true });
    }
    return false;
  }

  /** Return whether the process in the lock file has ended. This process's own id counts as alive: another store may use it. */
  #isOwnerGone(): boolean {
    const owner = Number(readIfExists(this.#lockPath) ?? NaN);
    return Number.isInteger(owner) && owner > 0 && owner !== process.pid && !isAlive(owner);
  }

  #load(): Record<string, Memory> {
    const text = this.#attempt(() => readIfExists(this.#path));
    if (text === undefined) return {};
    let document: unknown;
    try {
      document = JSON.parse(text);
    } catch {
      document = undefined;
    }
    if (!isObject(document)) {
      throw new StoreUnusable(`${this.#path} is damaged; no report was sent`);
    }
    return Object.fromEntries(Object.entries(document).map(([datasetId, stored]) => [datasetId, readMemory(stored)]));
  }

  #save(memories: Record<string, Memory>): void {
    this.#attempt(() => {
      const newPath = `${this.#path}.new`;
      rmSync(newPath, { force: true }); // left over after a crash
      write(newPath, JSON.stringify(memories, null, 1), true);
      renameSync(newPath, this.#path);
      const directory = openSync(dirname(this.#path), constants.O_RDONLY);
      try {
        fsyncSync(directory); // otherwise a power failure could undo the rename
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

function readIfExists(path: string): string | undefined {
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
