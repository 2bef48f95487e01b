/**
 * A lock between the processes of one machine, which the kernel releases when its holder ends.
 *
 * Node.js has no file locks. A file that names its holder needs a guess: process ids are reused, and a paused process
 * looks like a dead one. A listening socket needs no guess, because a connection to it succeeds if and only if its process
 * lives. A process therefore holds the lock while it listens on the socket with the highest number in a directory:
 *
 *     highest number n ──► does its process live? ──yes──► wait for its end
 *                                  │ no
 *                                  ▼
 *            listen, link as n + 1 ──► still the highest? ──no──► start again
 *                                  │ yes
 *                                  ▼
 *                             hold the lock
 *
 * `link` creates each number once, and only lower numbers are deleted. The highest number therefore never decreases, and
 * a process that was paused between two steps finds a higher number and gives up its own.
 */

import { randomBytes } from "node:crypto";
import { linkSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, symlinkSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const POLL_MILLISECONDS = 20;
const ABANDONED_MILLISECONDS = 60_000; // age of a socket that its process never linked
const MAX_PATH_BYTES = 103; // limit of a socket's path on macOS; Linux permits 107
const MAX_NAME_BYTES = 24;
const DEAD: readonly unknown[] = ["ECONNREFUSED", "ENOENT", "ENOTSOCK"];
const LOST: readonly unknown[] = ["EEXIST", "ENOENT"]; // another process was faster

/** Create a directory and those above it. `mkdirSync` with `recursive` never ends in a file system that takes no directory. */
export function makeDirectory(path: string): void {
  const create = () => {
    try {
      mkdirSync(path, { mode: 0o700 });
    } catch (error) {
      if (!statSync(path, { throwIfNoEntry: false })?.isDirectory()) throw error;
    }
  };
  try {
    create();
  } catch (error) {
    if (codeOf(error) !== "ENOENT" || path === dirname(path)) throw error;
    makeDirectory(dirname(path));
    create();
  }
}

/** A lock that a process holds. */
export interface Held {
  release(): void;
}

/**
 * Wait for a lock and hold it.
 *
 * @param directory Directory of the sockets, on a local file system. It is created if it does not exist.
 * @returns The held lock, or undefined if another process holds it until the timeout.
 * @throws Error The directory cannot be used.
 */
export async function acquire(directory: string, timeoutMilliseconds: number): Promise<Held | undefined> {
  makeDirectory(directory);
  const short = shorten(directory);
  const deadline = performance.now() + timeoutMilliseconds;
  try {
    do {
      const held = await tryAcquire(short.path, deadline);
      if (held !== undefined) return { release: () => (held.release(), short.remove()) };
    } while (performance.now() < deadline);
  } catch (error) {
    short.remove();
    throw error;
  }
  short.remove();
  return undefined;
}

async function tryAcquire(directory: string, deadline: number): Promise<Held | undefined> {
  const highest = findHighest(directory);
  if (highest > 0 && (await isAlive(join(directory, String(highest)), deadline))) return undefined;
  const path = join(directory, `new-${randomBytes(8).toString("hex")}`);
  const held = await listen(path);
  try {
    linkSync(path, join(directory, String(highest + 1))); // the socket listens already, so no process takes it for a dead one
    if (findHighest(directory) === highest + 1) {
      removeOld(directory, highest + 1);
      return held;
    }
  } catch (error) {
    if (!LOST.includes(codeOf(error))) {
      held.release();
      throw error;
    }
  } finally {
    rmSync(path, { force: true });
  }
  held.release();
  return undefined;
}

/** Return the error code of Node.js, for example `ENOSPC`. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && "code" in error ? String(error.code) : undefined;
}

function findHighest(directory: string): number {
  return Math.max(0, ...readdirSync(directory).map(Number).filter(Number.isSafeInteger));
}

/** Delete lower numbers, and the sockets of processes that ended before they linked them. */
function removeOld(directory: string, own: number): void {
  for (const name of readdirSync(directory)) {
    const path = join(directory, name);
    try {
      if (Number(name) < own || (name.startsWith("new-") && Date.now() - statSync(path).mtimeMs > ABANDONED_MILLISECONDS)) rmSync(path, { force: true });
    } catch { /* another process deleted it, or it is a directory that somebody put here */ }
  }
}

/** Return whether a process listens on a socket. If one does, wait until it ends or the deadline passes. */
function isAlive(path: string, deadline: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    let pause = 0;
    const timer = setTimeout(() => socket.destroy(), Math.max(0, deadline - performance.now()));
    socket.on("error", (error) => {
      if (DEAD.includes(codeOf(error))) resolve(false);
      else pause = POLL_MILLISECONDS; // for example a full queue of connections
    });
    socket.on("close", () => {
      clearTimeout(timer);
      setTimeout(() => resolve(true), pause);
    });
    socket.resume();
  });
}

/** Listen on a new socket. Closing it also ends the connections, which wakes the waiting processes. */
function listen(path: string): Promise<Held> {
  const waiting = new Set<Socket>();
  const server = createServer((socket) => {
    waiting.add(socket);
    socket.on("error", () => socket.destroy()).on("close", () => waiting.delete(socket));
  });
  const release = () => {
    server.close();
    for (const socket of waiting) socket.destroy();
  };
  return new Promise((resolve, reject) => {
    server.on("error", reject);
    server.listen({ path, exclusive: true }, () => resolve({ release })); // exclusive: not in the primary process of a cluster
  });
}

/** Return a path of a directory that is short enough for the path of a socket in it. */
function shorten(directory: string): { readonly path: string; remove(): void } {
  if (Buffer.byteLength(directory) + 1 + MAX_NAME_BYTES <= MAX_PATH_BYTES) return { path: directory, remove: () => undefined };
  const parent = mkdtempSync(join(tmpdir(), "sfumato-"));
  const path = join(parent, "d");
  symlinkSync(directory, path);
  return { path, remove: () => rmSync(parent, { recursive: true, force: true }) };
}
