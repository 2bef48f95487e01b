/** Pieces of asynchronous work that run one after the other. */

/** A queue whose work starts when all earlier work has ended. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  /** Run the work after all earlier work. Return its result. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#last.then(work);
    this.#last = mine.catch(() => undefined); // the caller receives the error
    return mine;
  }
}
