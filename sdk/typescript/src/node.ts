/** A file store for programs on Node.js. */

import { createHash } from "node:crypto";
import { closeSync, constants, fsyncSync, lstatSync, openSync, readFileSync, readlinkSync, realpathSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";

import { isObject } from "./checks.js";
import { InvalidSpec, StoreUnusable } from "./errors.js";
import { acquire, codeOf, makeDirectory, type Held } from "./lock.js";
import { createMemory, readMemory, type Memory, type Store } from "./store.js";
import { Turns } from "./turns.js";

const LOCK_TIMEOUT_MILLISECONDS = 10_000;
const MAX_LINKS = 40;
const FILE_VERSION = 1;

const turns = new Map<string, Turns>(); // of the stores of this process, by file

/**
 * A store in one JSON file that only its owner can read.
 *
 * Each change replaces the whole file and syncs it to disk. Sockets in a directory next to it prevent concurrent changes by
 * two processes of one machine. The kernel ends the lock with the process that holds it. The participation draws in the
 * file are secret, because they reveal in which rounds the device takes part. Do not copy the file to a second device or
 * restore an old backup: the device could then perturb one record twice.
 */
export class FileStore implements Store {
  /** The file, without links. A later change of the working directory or of a link does not change it. */
  readonly location: string;
  readonly #turns: Turns;

  /**
   * @param path Path of the file, resolved now and through all links. The first change creates the file and its directory.
   * @throws StoreUnusable The path cannot be resolved, or the platform is Windows.
   */
  constructor(path: string) {
    if (process.platform === "win32") throw new StoreUnusable("FileStore needs a POSIX system. Pass another Store to the device");
    if (typeof path !== "string") throw new InvalidSpec("the path of a FileStore must be a string");
    if (path === "") throw new StoreUnusable("the path of a FileStore is empty: pass the path of a file");
    try {
      this.location = resolveLinks(resolve(path));
    } catch (error) {
      throw new StoreUnusable(`${path} cannot be resolved: ${codeOf(error) ?? "unknown"}`);
    }
    this.#turns = turns.get(this.location) ?? new Turns();
    turns.set(this.location, this.#turns);
  }

  async read(datasetId: string): Promise<Memory> {
    return this.#load()[datasetId] ?? createMemory(); // needs no lock, because a change replaces the whole file
  }

  change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    return this.#turns.run(() => this.#change(datasetId, change));
  }

  async #change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    this.#attempt(() => makeDirectory(dirname(this.location)));
    const lock = await this.#lock();
    try {
      this.#checkOneName();
      const memories = this.#load();
      const memory = memories[datasetId] ?? createMemory();
      const before = JSON.stringify(memory);
      const result = change(memory);
      if (JSON.stringify(memory) !== before) this.#save({ ...memories, [datasetId]: memory });
      return result;
    } finally {
      lock.release();
    }
  }

  async #lock(): Promise<Held> {
    try {
      const held = await acquire(`${this.location}.locks`, LOCK_TIMEOUT_MILLISECONDS);
      if (held !== undefined) return held;
    } catch (error) {
      throw this.#unusable(error);
    }
    throw new StoreUnusable(`another process holds the lock ${this.location}.locks for more than ${LOCK_TIMEOUT_MILLISECONDS / 1000} s; no report was sent`);
  }

  /** Throw StoreUnusable if the file has a second hard link. A change would separate the two files. */
  #checkOneName(): void {
    const links = this.#attempt(() => statSync(this.location, { throwIfNoEntry: false })?.nlink ?? 1);
    if (links > 1) throw new StoreUnusable(`${this.location} has ${links} hard links: delete all but one; no report was sent`);
  }

  #load(): Record<string, Memory> {
    const text = this.#attempt(() => readIfExists(this.location));
    if (text === undefined) return {};
    let document: unknown;
    try {
      document = JSON.parse(text);
    } catch {
      document = undefined;
    }
    const { version, datasets, sha256 } = isObject(document) ? document : {};
    if (version !== FILE_VERSION || !isObject(datasets) || sha256 !== digest(datasets)) {
      throw new StoreUnusable(`${this.location} is damaged or has another version; no report was sent`);
    }
    return Object.fromEntries(Object.entries(datasets).map(([datasetId, stored]) => [datasetId, readMemory(stored)]));
  }

  #save(memories: Record<string, Memory>): void {
    this.#attempt(() => {
      const newPath = `${this.location}.new`;
      rmSync(newPath, { force: true }); // left over after a crash
      write(newPath, JSON.stringify({ version: FILE_VERSION, datasets: memories, sha256: digest(memories) }, null, 1));
      renameSync(newPath, this.location);
      const directory = openSync(dirname(this.location), constants.O_RDONLY);
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
      throw this.#unusable(error);
    }
  }

  #unusable(error: unknown): StoreUnusable {
    const code = codeOf(error) ?? "unknown";
    const remedy = code === "EBUSY" ? ": mount its directory instead of the file" : "";
    return new StoreUnusable(`${this.location} cannot be used (${code})${remedy}; no report was sent`);
  }
}

/** Return the SHA-256 of a JSON value in hex. */
function digest(value: unknown): string {
  return createHash("sha256").update(JSON.stringify(value)).digest("hex");
}

function write(path: string, text: string): void {
  const file = openSync(path, "wx", 0o600);
  try {
    for (let bytes = Buffer.from(text); bytes.length > 0; ) bytes = bytes.subarray(writeSync(file, bytes));
    fsyncSync(file);
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

/** Return an absolute path without links. The file, and directories above it, may not exist yet. */
function resolveLinks(path: string): string {
  let file = path;
  for (let n = 0; n < MAX_LINKS; n += 1) {
    file = join(resolveDirectory(dirname(file)), basename(file));
    if (!lstatSync(file, { throwIfNoEntry: false })?.isSymbolicLink()) return file;
    file = resolve(dirname(file), readlinkSync(file));
  }
  throw Object.assign(new Error("too many links"), { code: "ELOOP" });
}

function resolveDirectory(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (codeOf(error) !== "ENOENT" || path === dirname(path)) throw error;
    return resolveLinks(path);
  }
}
