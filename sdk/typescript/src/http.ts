/**
 * HTTP requests with a bearer key, retries, and a size limit for responses.
 *
 * A request is retried with the same bytes after a connection error, a timeout, and the statuses 408, 429, 500, 502, 503
 * and 504. Retries end after `retrySeconds`. `Retry-After` is obeyed if it ends before that. Repeated requests are safe:
 * a report carries its id, and other writes carry an `Idempotency-Key` that is the same at every attempt.
 */

import { isObject, type Json } from "./checks.js";
import { ApiProblem, Unreachable } from "./errors.js";

const RETRY_STATUSES: readonly number[] = [408, 429, 500, 502, 503, 504];
const MIN_PAUSE_SECONDS = 0.1;
const MAX_PAUSE_SECONDS = 5;
const MAX_RESPONSE_BYTES = 1 << 20; // limit for devices, which receive only rounds and receipts

/** A function with the interface of `fetch`. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** Options of the connection to the service. */
export interface HttpOptions {
  /** Timeout of one attempt in seconds; 10 by default. `Client` uses 30. */
  readonly timeoutSeconds?: number;
  /** Seconds during which a failed request is retried; 30 by default. 0 disables retries. */
  readonly retrySeconds?: number;
  /** Replacement for the platform's `fetch`. */
  readonly fetch?: Fetch;
}

/** A response with a status below 300, or 304. */
export interface HttpResponse {
  readonly status: number;
  readonly headers: Headers;
  /** The parsed JSON body, the text of another media type, or bytes. */
  readonly body: unknown;
}

/** Options of a request. */
export interface RequestOptions {
  /** Request body, sent as JSON. */
  readonly body?: unknown;
  /** Request body of another media type, sent instead of `body`. */
  readonly content?: { readonly type: string; readonly bytes: string | Uint8Array<ArrayBuffer> };
  readonly headers?: Readonly<Record<string, string>>;
  /** Requested media type; JSON by default. */
  readonly accept?: string;
  /** Whether to return the body of a successful response as bytes. */
  readonly asBytes?: boolean;
  /** Seconds added to the timeout, for long polls. */
  readonly extraSeconds?: number;
  /** Aborts the request and its retries. */
  readonly signal?: AbortSignal | undefined;
}

interface PreparedRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly body: string | Uint8Array<ArrayBuffer> | null;
  readonly asBytes: boolean;
  readonly seconds: number;
  readonly signal: AbortSignal | undefined;
}

const JSON_TYPE = "application/json";
const PNG_TYPE = "image/png";
const PROBLEM_MEDIA_TYPE = "application/problem+json";
const PROBLEM_TYPE = "urn:sfumato:problem:"; // the type of a problem is this and its code

/** Title of the error for an answer that another program than the service wrote. */
export const FOREIGN = "the answer is not from the service";

/** Connection to one service with one key. */
export class Http {
  readonly #root: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutSeconds: number;
  readonly #retrySeconds: number;
  readonly #fetch: Fetch;

  constructor(url: string, key: string, options: HttpOptions, private readonly maxResponseBytes = MAX_RESPONSE_BYTES) {
    this.#root = `${url.replace(/\/+$/, "")}/v1/`;
    this.#headers = { Authorization: `Bearer ${key}` };
    this.#timeoutSeconds = options.timeoutSeconds ?? 10;
    this.#retrySeconds = options.retrySeconds ?? 30;
    this.#fetch = options.fetch ?? ((requestUrl, init) => globalThis.fetch(requestUrl, init));
  }

  /**
   * Send a request and retry it after temporary failures.
   *
   * @throws ApiProblem The service returned an error at the last attempt, or an error that a retry cannot fix.
   * @throws Unreachable The service did not respond at the last attempt.
   */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<HttpResponse> {
    const prepared = this.#prepare(method, path, options);
    const deadline = performance.now() + 1000 * this.#retrySeconds;
    for (let backoff = MIN_PAUSE_SECONDS; ; backoff = Math.min(2 * backoff, MAX_PAUSE_SECONDS)) {
      let failure: ApiProblem | Unreachable;
      let retryAfter: number | undefined;
      try {
        const response = await this.#attempt(prepared);
        if (response.status < 300 || response.status === 304) return response;
        failure = readProblem(response);
        retryAfter = readRetryAfter(response.headers);
        if (!RETRY_STATUSES.includes(response.status)) throw failure;
      } catch (error) {
        if (error instanceof ApiProblem) throw error;
        prepared.signal?.throwIfAborted();
        failure = new Unreachable(`no response from ${this.#root} (${error instanceof Error ? error.name : "unknown"})`);
      }
      const pause = 1000 * (retryAfter ?? backoff * (0.5 + Math.random())); // jitter does not need private randomness
      if (performance.now() + pause > deadline) throw failure;
      await sleep(pause, prepared.signal);
    }
  }

  #prepare(method: string, path: string, options: RequestOptions): PreparedRequest {
    const json = options.body === undefined ? undefined : { type: JSON_TYPE, bytes: JSON.stringify(options.body) };
    const content = options.content ?? json;
    const headers = { ...this.#headers, Accept: options.accept ?? JSON_TYPE, ...options.headers };
    return {
      method,
      url: this.#root + path,
      headers: content === undefined ? headers : { ...headers, "Content-Type": content.type },
      body: content?.bytes ?? null,
      asBytes: options.asBytes ?? options.accept === PNG_TYPE,
      seconds: this.#timeoutSeconds + (options.extraSeconds ?? 0),
      signal: options.signal,
    };
  }

  async #attempt({ method, url, headers, body, asBytes, seconds, signal }: PreparedRequest): Promise<HttpResponse> {
    const timeout = AbortSignal.timeout(1000 * seconds);
    const response = await this.#fetch(url, {
      method,
      headers,
      body,
      redirect: "error", // a redirect must not send the key or a report to another server
      credentials: "omit",
      cache: "no-store",
      referrerPolicy: "no-referrer",
      signal: signal === undefined ? timeout : AbortSignal.any([timeout, signal]),
    });
    const bytes = await readBounded(response, this.maxResponseBytes);
    return { status: response.status, headers: response.headers, body: response.ok && asBytes ? bytes : parseBody(response, bytes, headers["Accept"]) };
  }
}

/** Parse a response body. The service's error responses are JSON, whatever media type was requested. */
function parseBody(response: Response, bytes: Uint8Array, accept: string | undefined): unknown {
  const text = new TextDecoder().decode(bytes);
  if (response.ok && accept !== JSON_TYPE) return text;
  try {
    return text === "" ? undefined : JSON.parse(text);
  } catch {
    if (!response.ok) return undefined; // `readProblem` rejects it
    throw unexpectedResponse(response.status, "the response is not JSON");
  }
}

function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** Read a response body. Throw ApiProblem if it is longer than `maxBytes`. */
async function readBounded(response: Response, maxBytes: number): Promise<Uint8Array> {
  if (response.body === null) return new Uint8Array();
  const reader = response.body.getReader();
  const pieces: Uint8Array[] = [];
  for (let length = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return concatenate(pieces, length);
    length += value.length;
    if (length > maxBytes) {
      await reader.cancel();
      throw unexpectedResponse(response.status, `the response is longer than ${maxBytes} bytes`);
    }
    pieces.push(value);
  }
}

function concatenate(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Return the problem of an error response. Its code is `unexpected_response` unless the service wrote it. */
function readProblem({ status, headers, body }: HttpResponse): ApiProblem {
  const [mediaType = ""] = (headers.get("Content-Type") ?? "").split(";");
  const document: Json = isObject(body) && mediaType.trim().toLowerCase() === PROBLEM_MEDIA_TYPE ? body : {};
  const isOwn = document["type"] === `${PROBLEM_TYPE}${String(document["code"])}` && document["status"] === status;
  return isOwn ? new ApiProblem(status, document) : unexpectedResponse(status, FOREIGN);
}

/** Return the error for a response that does not follow the OpenAPI document. Another program may have answered. */
export function unexpectedResponse(status: number, title: string): ApiProblem {
  const remedy = "check the URL, and the network and the proxies on the way to the service";
  return new ApiProblem(status, { code: "unexpected_response", title: `${title}: ${remedy}`, status });
}

/** Return the `Retry-After` header in seconds. A date is ignored, because the clocks of device and service can differ. */
export function readRetryAfter(headers: Headers): number | undefined {
  const text = headers.get("Retry-After") ?? "";
  return /^\d{1,9}(\.\d+)?$/.test(text) ? Number(text) : undefined;
}
