/** Sfumato on a device: perturb a record under the user's own cap, and report it once. */

export { formatEpsilon, parseEpsilon, realisedEpsilon } from "./accounting.js";
export { Device, type Answered, type DeviceOptions, type Outcome, type Receipt } from "./device.js";
export { SystemEntropy, type Entropy } from "./entropy.js";
export * from "./errors.js";
export type { Fetch, HttpOptions } from "./http.js";
export { perturb, readRoundSpec, type Draw, type Feature, type PersonRecord, type Perturbed, type RoundSpec } from "./specs.js";
export { IndexedDbStore, MemoryStore, checkedMemory, emptyMemory, type Memo, type MemoState, type Memory, type Store } from "./store.js";
