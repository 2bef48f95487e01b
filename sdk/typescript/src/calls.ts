/**
 * How the client's methods become requests: typed paths, idempotency keys, pages.
 *
 * The types of a request and of its answer are made from the service's own description of
 * itself (`src/generated`); a path that is not in it does not compile.
 */

import { check, isObject } from "./checks.js";
import { Http, unexpected, type Asked } from "./http.js";

const PAGE_ITEMS = 200;
const ID = /^[A-Za-z0-9_-]{1,64}$/;

/** What is generated of an operation's request. */
export interface Operation {
  readonly url: string;
  readonly path?: unknown;
  readonly query?: unknown;
  readonly body?: unknown;
}

/** What of a request is the operation's own; what it cannot be without has to be there. */
export type Given<O extends Operation> = Pick<O, Extract<keyof O, "path" | "query" | "body">>;

/** The same for who does not know the operation. */
interface AnyGiven {
  readonly path?: unknown;
  readonly query?: unknown;
  readonly body?: unknown;
}

/** For every call. */
export interface CallOptions {
  /** Ends the call and its retries; the service may have done by then what it was asked. */
  readonly signal?: AbortSignal;
}

/** For calls that make something. */
export interface WriteOptions extends CallOptions {
  /**
   * Yours, where the same thing is to be found again after a crash of your own; a fresh one by
   * default. It is the same at every attempt, so a lost answer never makes a second one.
   */
  readonly idempotencyKey?: string;
}

interface Page<T> {
  readonly items: readonly T[];
  readonly next_cursor: string | null;
}

/** One service, one key, the operations of its description. */
export class Calls {
  constructor(readonly http: Http) {}

  get<O extends Operation, R>(url: O["url"], given: Given<O>, options: CallOptions = {}, more: Asked = {}): Promise<R> {
    return this.#answered("GET", url, given, { ...more, signal: options.signal });
  }

  /** A write that may be repeated as it is, or must not be remembered. */
  send<O extends Operation, R>(method: string, url: O["url"], given: Given<O>, options: CallOptions = {}, more: Asked = {}): Promise<R> {
    return this.#answered(method, url, given, { ...more, signal: options.signal });
  }

  /** A write that happens once, however often it is sent. */
  once<O extends Operation, R>(url: O["url"], given: Given<O>, options: WriteOptions = {}, more: Asked = {}): Promise<R> {
    const headers = { ...more.headers, "Idempotency-Key": options.idempotencyKey ?? freshKey() };
    return this.#answered("POST", url, given, { ...more, headers, signal: options.signal });
  }

  /** Every item of a list, page after page, as they are asked for. */
  async *items<O extends Operation, T>(url: O["url"], given: Given<O>, options: CallOptions = {}): AsyncGenerator<T, void, void> {
    let cursor: string | undefined;
    for (;;) {
      const { path, query }: AnyGiven = given;
      const asked = { path, query: { ...(isObject(query) ? query : {}), limit: PAGE_ITEMS, cursor } };
      const page = checkedPage<T>(await this.#answered("GET", url, asked, { signal: options.signal }));
      yield* page.items;
      if (page.next_cursor === null || page.next_cursor === cursor) return;
      cursor = page.next_cursor;
    }
  }

  async #answered<R>(method: string, url: string, given: AnyGiven, asked: Asked): Promise<R> {
    const body = given.body === undefined ? {} : { body: given.body };
    const answer = await this.http.request(method, filled(url, given.path) + queryOf(given.query), { ...asked, ...body });
    return answer.body as R; // as the description says: the service's word is taken for its shape
  }
}

/** The path below `/v1/`, with its ids. */
function filled(url: string, path: unknown): string {
  const ids = isObject(path) ? path : {};
  return url.replace(/^\/v1\//, "").replace(/\{(\w+)\}/g, (_, name: string) => {
    const id = ids[name];
    check(typeof id === "string" && ID.test(id), `${name} is 1 to 64 letters, digits, _ and -`);
    return id;
  });
}

function queryOf(query: unknown): string {
  const given = Object.entries(isObject(query) ? query : {}).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}

function checkedPage<T>(answer: unknown): Page<T> {
  const { items, next_cursor: next } = isObject(answer) ? answer : {};
  if (!Array.isArray(items) || !(next === null || typeof next === "string")) throw unexpected(200, "the answer is no page of a list");
  return { items, next_cursor: next };
}

function freshKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
