/** A device memory in a storage of texts, such as AsyncStorage of React Native. */

import { StoreUnusable } from "./errors.js";
import { readMemory, type Memory, type Store } from "./store.js";
import { Turns } from "./turns.js";

/** A storage of texts. The promise of `setItem` resolves when the text is durable. */
export interface TextStorage {
  getItem(key: string): Promise<string | null>;
  setItem(key: string, text: string): Promise<unknown>;
}

const turns = new WeakMap<TextStorage, Turns>(); // one change of a storage at a time

/**
 * A store in AsyncStorage of React Native, or in another storage with its methods.
 *
 *     const store = new AsyncStorageStore(AsyncStorage);
 *
 * The stores of one JavaScript program exclude each other. Two programs must not use one storage at the same time. Do not
 * use a storage that keeps texts in memory first. The participation draws in the storage are secret, because they reveal
 * in which rounds the device takes part.
 */
export class AsyncStorageStore implements Store {
  readonly location: string;

  /**
   * @param storage The storage.
   * @param name Begin of the keys. Use one name for each person who uses this app.
   */
  constructor(private readonly storage: TextStorage, private readonly name = "sfumato") {
    this.location = `AsyncStorage ${name}`;
  }

  async read(datasetId: string): Promise<Memory> {
    const text = await this.#attempt(async () => this.storage.getItem(this.#key(datasetId)));
    if (text === null || text === undefined) return readMemory(undefined);
    let stored: unknown = null; // not a memory
    try {
      stored = JSON.parse(text);
    } catch { /* damaged */ }
    return readMemory(stored);
  }

  change<T>(datasetId: string, change: (memory: Memory) => T): Promise<T> {
    const queue = turns.get(this.storage) ?? new Turns();
    turns.set(this.storage, queue);
    return queue.run(async () => {
      const memory = await this.read(datasetId);
      const result = change(memory);
      await this.#attempt(async () => this.storage.setItem(this.#key(datasetId), JSON.stringify(memory)));
      return result;
    });
  }

  #key(datasetId: string): string {
    return `${this.name}:${datasetId}`;
  }

  async #attempt<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw new StoreUnusable(`the storage could not use the device memory (${error instanceof Error ? error.name : "unknown"}); no report was sent`);
    }
  }
}
