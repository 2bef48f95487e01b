/**
 * Typed requests of the client, with idempotency keys and pagination.
 *
 * The request and response types are generated from the OpenAPI document (`src/generated`). A path that is not in the
 * document does not compile.
 */

import { check, isObject } from "./checks.js";
import { fillRandom } from "./entropy.js";
import { Http, unexpectedResponse, type RequestOptions } from "./http.js";

const PAGE_ITEMS = 200;
const ID = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$/;

/** The generated request type of an operation. */
export interface Operation {
  readonly url: string;
  readonly path?: unknown;
  readonly query?: unknown;
  readonly body?: unknown;
}

/** The parameters of an operation. Required parameters are required here too. */
export type RequestParameters<O extends Operation> = Pick<O, Extract<keyof O, "path" | "query" | "body">>;

/** The parameters of an unknown operation. */
interface AnyParameters {
  readonly path?: unknown;
  readonly query?: unknown;
  readonly body?: unknown;
}

/** Options of every call. */
export interface CallOptions {
  /** Aborts the call and its retries. The service may already have processed the request. */
  readonly signal?: AbortSignal;
}

/** Options of calls that create an object. */
export interface WriteOptions extends CallOptions {
  /**
   * Idempotency key, random by default. All retries of a call use the same key, so a lost response never creates a
   * second object. Pass your own key to find the same object again after a crash of your program.
   */
  readonly idempotencyKey?: string;
}

interface Page<T> {
  readonly items: readonly T[];
  readonly next_cursor: string | null;
}

/** The operations of one service, called with one key. */
export class Calls {
  constructor(readonly http: Http) {}

  /** Send a GET request. */
  get<O extends Operation, R>(url: O["url"], parameters: RequestParameters<O>, options: CallOptions = {}, more: RequestOptions = {}): Promise<R> {
    return this.#request("GET", url, parameters, { ...more, signal: options.signal });
  }

  /** Send a write without an idempotency key, for operations that can be repeated. */
  send<O extends Operation, R>(method: string, url: O["url"], parameters: RequestParameters<O>, options: CallOptions = {}, more: RequestOptions = {}): Promise<R> {
    return this.#request(method, url, parameters, { ...more, signal: options.signal });
  }

  /** Send a POST request with an idempotency key, so that retries have one effect. */
  sendOnce<O extends Operation, R>(url: O["url"], parameters: RequestParameters<O>, options: WriteOptions = {}, more: RequestOptions = {}): Promise<R> {
    const headers = { ...more.headers, "Idempotency-Key": options.idempotencyKey ?? createIdempotencyKey() };
    return this.#request("POST", url, parameters, { ...more, headers, signal: options.signal });
  }

  /** Iterate over all items of a list. Each page is requested when its first item is needed. */
  async *items<O extends Operation, T>(url: O["url"], parameters: RequestParameters<O>, options: CallOptions = {}): AsyncGenerator<T, void, void> {
    let cursor: string | undefined;
    for (;;) {
      const { path, query }: AnyParameters = parameters;
      const next = { path, query: { ...(isObject(query) ? query : {}), limit: PAGE_ITEMS, cursor } };
      const page = readPage<T>(await this.#request("GET", url, next, { signal: options.signal }));
      yield* page.items;
      if (page.next_cursor === null || page.next_cursor === cursor) return;
      cursor = page.next_cursor;
    }
  }

  async #request<R>(method: string, url: string, parameters: AnyParameters, options: RequestOptions): Promise<R> {
    const body = parameters.body === undefined ? {} : { body: parameters.body };
    const response = await this.http.request(method, buildPath(url, parameters.path) + buildQuery(parameters.query), { ...options, ...body });
    return response.body as R; // not validated: the client trusts the types of the OpenAPI document
  }
}

/** Return the path below `/v1/` with the ids inserted. */
function buildPath(url: string, path: unknown): string {
  const ids = isObject(path) ? path : {};
  return url.replace(/^\/v1\//, "").replace(/\{(\w+)\}/g, (_, name: string) => {
    const id = ids[name];
    check(typeof id === "string" && ID.test(id), `${name} must have 1 to 64 characters: letters, digits, _, - or, not first, a dot`);
    return id;
  });
}

function buildQuery(query: unknown): string {
  const members = Object.entries(isObject(query) ? query : {}).filter(([, value]) => value !== undefined);
  const text = members.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
  return text && `?${text}`;
}

function readPage<T>(body: unknown): Page<T> {
  const { items, next_cursor: next } = isObject(body) ? body : {};
  if (!Array.isArray(items) || !(next === null || typeof next === "string")) throw unexpectedResponse(200, "the response is not a page of a list");
  return { items, next_cursor: next };
}

function createIdempotencyKey(): string {
  return Array.from(fillRandom(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
