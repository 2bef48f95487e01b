/**
 * Durable memory of a device: its participation draws and the rounds that it answered.
 *
 * Without this memory a device would perturb the same record again for the same round, and averaging the reports would
 * remove the noise. It would also not know its spent epsilon. Therefore every change is stored before a report is sent.
 * A memory that cannot be read is an error and is not replaced by an empty one.
 */

import { isObject } from "./checks.js";
import { StoreUnusable } from "./errors.js";
import { LAST_DAY } from "./periods.js";

export const STORE_VERSION = 1;

/**
 * State of a report:
 *
 * - `pending`: the service has not acknowledged the report yet;
 * - `acknowledged`: the service stored the report;
 * - `closed`: the round closed before the report arrived;
 * - `refused`: the service rejected the report.
 */
export type MemoState = "pending" | "acknowledged" | "closed" | "refused";

/** A round that this device answered. Memos are never deleted, because their cost stays spent. */
export interface Memo {
  readonly roundId: string;
  readonly collectionId: string;
  /** Cost of the report: the realised epsilon in nano-epsilon, rounded up, as a decimal string. */
  readonly epsilonNano: string;
  /** SHA-256 of the round spec at the time of the report, in hex. */
  readonly specHash: string;
  readonly state: MemoState;
  /** Random id of the report, 32 hex digits, or "" for a sealed report, which contains it. */
  readonly reportId: string;
  /** Slot of the report, or null for a sealed report and once the state is final. */
  readonly slot: number | null;
  /** Perturbed value, or outer key and sealed report, in base64, or null once the state is final. */
  readonly value: string | null;
  /** UTC day of the answer by the clock of the device, in days since 1970-01-01. It is never before that of an earlier answer. */
  readonly day: number;
}

/** The memory of a device for one dataset, as plain JSON. */
export interface Memory {
  readonly version: typeof STORE_VERSION;
  /** Secret participation draw by collection id, as a decimal string. */
  readonly draws: Record<string, string>;
  /** Answered rounds by round id, in the order of answering. */
  readonly memos: Record<string, Memo>;
}

/** Storage for the memory of a device. One store can serve several datasets. */
export interface Store {
  /** Where the memory is, for example the path of a file. A receipt names it. */
  readonly location?: string;
  /** Return a copy of the memory. For an unknown dataset, return an empty memory. */
  read(datasetId: string): Promise<Memory>;
  /**
   * Apply `change` to the memory and store the changed memory durably.
   *
   * The store calls `change` exactly once and allows no other change at the same time. If `change` throws, the stored memory
   * stays the same. The promise resolves after the change is durable.
   *
   * @throws StoreUnusable The memory cannot be read, written or locked.
   */
  change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T>;
}

/** Return an empty memory. */
export function createMemory(): Memory {
  return { version: STORE_VERSION, draws: {}, memos: {} };
}

/** Return a copy of a memory, which is plain JSON. */
function copyMemory(memory: Memory): Memory {
  return JSON.parse(JSON.stringify(memory)) as Memory;
}

/** Return the spent epsilon of a memory since a day, in nano-epsilon. */
export function sumSpentNano(memory: Memory, since = 0): bigint {
  return Object.values(memory.memos).reduce((sum, { epsilonNano, day }) => (day >= since ? sum + BigInt(epsilonNano) : sum), 0n);
}

const STATES: readonly unknown[] = ["pending", "acknowledged", "closed", "refused"];

/**
 * Validate a stored memory.
 *
 * @param stored The stored JSON value, or undefined for an unknown dataset.
 * @throws StoreUnusable The value is damaged or has another version.
 */
export function readMemory(stored: unknown): Memory {
  if (stored === undefined) return createMemory();
  const { version, draws, memos } = isObject(stored) ? stored : {};
  const hasShape = version === STORE_VERSION && isObject(draws) && isObject(memos);
  const isValid =
    hasShape &&
    Object.values(draws).every((draw) => typeof draw === "string" && /^\d{1,20}$/.test(draw)) &&
    Object.entries(memos).every(([roundId, memo]) => isMemo(memo) && memo.roundId === roundId);
  if (!isValid) {
    throw new StoreUnusable("the device memory is damaged or has another version; no report was sent");
  }
  return stored as Memory;
}

function isMemo(memo: unknown): memo is Memo {
  if (!isObject(memo)) return false;
  const { roundId, collectionId, epsilonNano, specHash, state, reportId, slot, value, day } = memo;
  const hasTexts = [roundId, collectionId, specHash].every((text) => typeof text === "string");
  const hasCost = typeof epsilonNano === "string" && /^\d{1,20}$/.test(epsilonNano);
  const isSealed = reportId === "";
  const hasId = isSealed || (typeof reportId === "string" && /^[0-9a-f]{32}$/.test(reportId));
  const hasSlot = isSealed ? slot === null : typeof slot === "number";
  const hasValue = state === "pending" ? typeof value === "string" && hasSlot : value === null;
  const hasDay = Number.isSafeInteger(day) && (day as number) >= 0 && (day as number) <= LAST_DAY;
  return hasTexts && hasCost && hasId && hasValue && hasDay && STATES.includes(state);
}

/** A store that loses its memory when the page or process ends. Use it for tests and simulations only. */
export class MemoryStore implements Store {
  readonly #memories = new Map<string, Memory>();

  async read(datasetId: string): Promise<Memory> {
    return copyMemory(this.#memories.get(datasetId) ?? createMemory());
  }

  async change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    const memory = copyMemory(this.#memories.get(datasetId) ?? createMemory());
    const result = change(memory);
    this.#memories.set(datasetId, memory);
    return result;
  }
}
