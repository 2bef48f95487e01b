/**
 * HTTP requests with a bearer key, retries, and a size limit for responses.
 *
 * A request is retried after a connection error, a timeout, and the statuses 408, 429, 500, 502, 503 and 504, with the same
 * bytes unless a function makes them for each attempt. Retries end after `retrySeconds`. `Retry-After` is obeyed if it ends before that. Repeated requests are safe:
 * a report carries its id, and other writes carry an `Idempotency-Key` that is the same at every attempt.
 */

import { check, isObject, type Json } from "./checks.js";
import { ApiProblem, SfumatoError, UnsupportedPlatform, Unreachable } from "./errors.js";
import { abortReason, findOrigin, now, pause, readBody, runWithin } from "./platform.js";

const RETRY_STATUSES: readonly number[] = [408, 429, 500, 502, 503, 504];
const MIN_PAUSE_SECONDS = 0.1;
const MAX_PAUSE_SECONDS = 5;
const PROBE_SECONDS = 3;
const BODY_BYTES_PER_SECOND = 1 << 20; // slowest transfer and processing of a body that a service responds to in time
const BLOCKED_SECONDS = 3; // time after which an answer that the browser keeps back is not an outage of a proxy
const MAX_RESPONSE_BYTES = 1 << 20; // limit for devices, which receive only rounds and receipts

/** A function with the interface of `fetch`. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** Options of the connection to the service. */
export interface HttpOptions {
  /** Timeout of one attempt in seconds; 10 by default. `Client` uses 30. It is a second longer for each MiB of the body. */
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

/** The body of a request. A function returns the bytes of each attempt. */
export type Body = string | Uint8Array<ArrayBuffer> | (() => Promise<Uint8Array<ArrayBuffer>>);

/** Options of a request. */
export interface RequestOptions {
  /** Request body, sent as JSON. */
  readonly body?: unknown;
  /** Request body of another media type, sent instead of `body`. */
  readonly content?: { readonly type: string; readonly bytes: Body };
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
  readonly body: Body | null;
  readonly asBytes: boolean;
  readonly seconds: number;
  readonly signal: AbortSignal | undefined;
}

const ADDRESS = /^https?:\/\/(\[[\da-f:.]+\]|[^/:[\]\\]+)(?::(\d{1,5}))?(?:\/|$)/i;
const JSON_TYPE = "application/json";
const PNG_TYPE = "image/png";
const PROBLEM_MEDIA_TYPE = "application/problem+json";
const PROBLEM_TYPE = "urn:sfumato:problem:"; // the type of a problem is this and its code

/** Title of the error for an answer that another program than the service wrote. */
export const FOREIGN = "the answer is not from the service";
const CHECK_THE_WAY = "check the URL, and the network and the proxies on the way to the service";
const TOO_LARGE = "the proxy in front of the service accepts smaller bodies only";
const SMALLER = "send fewer reports at once, or raise the limit of the proxy (nginx: client_max_body_size)";

/** Connection to one service with one key. */
export class Http {
  readonly #root: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutSeconds: number;
  readonly #retrySeconds: number;
  readonly #fetch: Fetch;

  constructor(url: string, key: string, options: HttpOptions, private readonly maxResponseBytes = MAX_RESPONSE_BYTES) {
    this.#root = `${readUrl(url)}/v1/`;
    this.#headers = { Authorization: `Bearer ${readKey(key)}` };
    this.#timeoutSeconds = options.timeoutSeconds ?? 10;
    this.#retrySeconds = options.retrySeconds ?? 30;
    if (options.fetch === undefined && typeof globalThis.fetch !== "function") {
      throw new UnsupportedPlatform("this platform has no fetch: pass one in the option `fetch`, for example that of node-fetch");
    }
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
    const start = now();
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
        if (prepared.signal?.aborted) throw abortReason(prepared.signal);
        if (error instanceof SfumatoError) throw error;
        const name = error instanceof Error ? error.name : "unknown";
        const isBlocked = name === "TypeError" && (await this.#isBlocked(prepared.signal));
        failure = isBlocked ? this.#blocked() : new Unreachable(`no response from ${this.#root} (${name})`);
        if (isBlocked && now() - start > 1000 * BLOCKED_SECONDS) throw failure;
      }
      const milliseconds = 1000 * (retryAfter ?? backoff * (0.5 + Math.random())); // jitter does not need private randomness
      if (now() + milliseconds > start + 1000 * this.#retrySeconds) throw failure;
      await pause(milliseconds, prepared.signal);
    }
  }

  #blocked(): Unreachable {
    const remedy = `add ${findOrigin()} to SFUMATO_CORS_ORIGINS of the service`;
    return new Unreachable(`${this.#root} answers, but the browser keeps its answers from this page: ${remedy}. A proxy in front of a service that is down can cause the same`);
  }

  #prepare(method: string, path: string, options: RequestOptions): PreparedRequest {
    const json = options.body === undefined ? undefined : { type: JSON_TYPE, bytes: JSON.stringify(options.body) };
    const content = options.content ?? json;
    const body = content?.bytes ?? null;
    const bodyBytes = body === null || typeof body === "function" ? 0 : body.length;
    const headers = { ...this.#headers, Accept: options.accept ?? JSON_TYPE, ...options.headers };
    return {
      method,
      url: this.#root + path,
      headers: content === undefined ? headers : { ...headers, "Content-Type": content.type },
      body,
      asBytes: options.asBytes ?? options.accept === PNG_TYPE,
      seconds: this.#timeoutSeconds + (options.extraSeconds ?? 0) + bodyBytes / BODY_BYTES_PER_SECOND,
      signal: options.signal,
    };
  }

  async #attempt({ method, url, headers, body, asBytes, seconds, signal }: PreparedRequest): Promise<HttpResponse> {
    return runWithin(seconds, signal, async (limit) => {
      const response = await this.#fetch(url, {
        method,
        headers,
        body: typeof body === "function" ? await body() : body,
        redirect: "manual", // a redirect must not send the key or a report to another server
        credentials: "omit",
        cache: "no-store",
        referrerPolicy: "no-referrer",
        ...(limit === undefined ? {} : { signal: limit }),
      });
      const { status } = response;
      if (response.redirected || response.type === "opaqueredirect" || (status >= 300 && status < 400 && status !== 304)) {
        const target = response.headers.get("Location");
        throw unexpectedResponse(status, `the request was redirected${target === null ? "" : ` to ${target}`}, and redirects are not followed`);
      }
      const tooLong = () => unexpectedResponse(status, `the response is longer than ${this.maxResponseBytes} bytes`);
      const read = await readBody(response, response.ok && asBytes, this.maxResponseBytes, tooLong);
      return { status, headers: response.headers, body: typeof read === "string" ? parseBody(response, read, headers["Accept"]) : read };
    });
  }

  /**
   * Return whether a service that seems unreachable does answer, but the browser keeps the answer from a page of another
   * origin. The request carries no key, and its answer cannot be read.
   */
  async #isBlocked(signal: AbortSignal | undefined): Promise<boolean> {
    const origin = findOrigin();
    if (origin === undefined || this.#root.startsWith(`${origin}/`)) return false;
    const init: RequestInit = { mode: "no-cors", credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" };
    const probe = runWithin(PROBE_SECONDS, signal, (limit) => this.#fetch(this.#root, limit === undefined ? init : { ...init, signal: limit }));
    return probe.then(({ type }) => type === "opaque", () => false);
  }
}

/** Parse a response body. The service's error responses are JSON, whatever media type was requested. */
function parseBody({ ok, status }: Response, text: string, accept: string | undefined): unknown {
  if (ok && accept !== JSON_TYPE) return text;
  try {
    return text === "" ? undefined : JSON.parse(text);
  } catch {
    if (!ok) return undefined; // `readProblem` rejects it
    throw unexpectedResponse(status, "the response is not JSON");
  }
}

/** Validate the URL of a service. Return it without a slash at its end. */
function readUrl(url: unknown): string {
  check(typeof url === "string" && url !== "", "url is missing: pass the URL of the service");
  check(/^https?:\/\/[^/]/i.test(url), `url must begin with http:// or https://${suggestUrl(url)}`);
  check(!/[@?#\s]/.test(url), "url must have no user name, query, fragment or space");
  const address = ADDRESS.exec(url);
  const port = Number(address?.[2] ?? 1);
  check(address !== null && port >= 1 && port < 65536, "url must have a host name or address, and a port up to 65535 if it has one");
  const root = url.replace(/\/+$/, "");
  check(!/\/v1$/.test(root), `url must be without /v1: pass ${root.slice(0, -3)}`);
  const isMixed = findOrigin()?.startsWith("https:") && /^http:\/\/(?!localhost\b|127\.|\[::1\])/i.test(root);
  check(!isMixed, "a page on https cannot use a service on http: pass an https URL");
  return root;
}

function suggestUrl(url: string): string {
  if (/[@\s]/.test(url)) return ""; // may contain a password
  const rest = url.replace(/^([a-z]+:)?\/+/i, "");
  return `: pass ${/^(localhost|127\.|\[)/.test(rest) ? "http" : "https"}://${rest}`;
}

function readKey(key: unknown): string {
  check(typeof key === "string" && key !== "", "key is missing: pass an API key");
  check(/^[!-~]+$/.test(key), "key must have visible ASCII characters only: remove spaces and line ends");
  return key;
}

/** Return the problem of an error response. Its code is `unexpected_response` unless the service wrote it. */
function readProblem({ status, headers, body }: HttpResponse): ApiProblem {
  const [mediaType = ""] = (headers.get("Content-Type") ?? "").split(";");
  const document: Json = isObject(body) && mediaType.trim().toLowerCase() === PROBLEM_MEDIA_TYPE ? body : {};
  const isOwn = document["type"] === `${PROBLEM_TYPE}${String(document["code"])}` && document["status"] === status;
  if (isOwn) return new ApiProblem(status, document);
  return status === 413 ? unexpectedResponse(status, TOO_LARGE, SMALLER) : unexpectedResponse(status, FOREIGN);
}

/** Return the error for a response that does not follow the OpenAPI document. Another program may have answered. */
export function unexpectedResponse(status: number, title: string, remedy = CHECK_THE_WAY): ApiProblem {
  return new ApiProblem(status, { code: "unexpected_response", title: `${title}: ${remedy}`, status });
}

/** Return the `Retry-After` header in seconds. A date is ignored, because the clocks of device and service can differ. */
export function readRetryAfter(headers: Headers): number | undefined {
  const text = headers.get("Retry-After") ?? "";
  return /^\d{1,9}(\.\d+)?$/.test(text) ? Number(text) : undefined;
}
