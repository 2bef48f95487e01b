/** The device side of Sfumato: perturb a record under the user's own cap and report it once per round. */

export { formatEpsilon, parseEpsilon, realisedEpsilon } from "./accounting.js";
export type { AttributeDeclaration } from "./attributes.js";
export { Device, type DeviceOptions, type Outcome, type Receipt, type RoundOutcome } from "./device.js";
export { SystemEntropy, type Entropy } from "./entropy.js";
export * from "./errors.js";
export type { Fetch, HttpOptions } from "./http.js";
export type { Period, PeriodCap } from "./periods.js";
export { perturb, readRoundSpec, type Coordinate, type Feature, type Participation, type PersonRecord, type PerturbedValue, type Position, type RecordCheck, type RoundSpec } from "./specs.js";
export { AsyncStorageStore, type TextStorage } from "./asyncstorage.js";
export { IndexedDbStore } from "./indexeddb.js";
export { MemoryStore, createMemory, readMemory, type Memo, type MemoState, type Memory, type Store } from "./store.js";
