/**
 * The one place that speaks HTTP: bearer key, problems, bounded retries, bounded answers.
 *
 * A request is tried again after a broken connection, a timeout, 408, 429 and 5xx, with the
 * same bytes, until `retrySeconds` have passed; `Retry-After` is honoured where it ends before
 * that. Everything sent here may be repeated: reports carry their id, other writes an
 * `Idempotency-Key`, which is the same at every attempt.
 */

import { isObject, type Json } from "./checks.js";
import { ApiProblem, Unreachable } from "./errors.js";

const TRY_AGAIN: readonly number[] = [408, 429, 500, 502, 503, 504];
const WAIT_FIRST_SECONDS = 0.1;
const WAIT_MOST_SECONDS = 5;
const MAX_ANSWER_BYTES = 1 << 20; // of a device, which is sent rounds and receipts

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface HttpOptions {
  /** Longest wait for any one answer; 10 by default. */
  readonly timeoutSeconds?: number;
  /** After this long no further attempt is planned; 30 by default, 0 tries once. */
  readonly retrySeconds?: number;
  /** In place of the platform's `fetch`. */
  readonly fetch?: Fetch;
}

/** An answer with a status below 300, or 304. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** What the JSON says; the text itself where something else was asked for, and a picture's bytes. */
  readonly body: unknown;
}

/** What goes with a request. */
export interface Asked {
  /** Sent as JSON. */
  readonly body?: unknown;
  /** Sent as it is, in place of `body`. */
  readonly content?: { readonly type: string; readonly bytes: string | Uint8Array<ArrayBuffer> };
  readonly headers?: Readonly<Record<string, string>>;
  /** JSON by default. */
  readonly accept?: string;
  /** How much longer than usual the service may think: long polls. */
  readonly extraSeconds?: number;
  /** Ends the request, and its retries. */
  readonly signal?: AbortSignal | undefined;
}

interface Sent {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly body: string | Uint8Array<ArrayBuffer> | null;
  readonly seconds: number;
  readonly signal: AbortSignal | undefined;
}

const JSON_TYPE = "application/json";
const PNG_TYPE = "image/png";

/** One service, one key. */
export class Http {
  readonly #root: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutSeconds: number;
  readonly #retrySeconds: number;
  readonly #fetch: Fetch;

  constructor(url: string, key: string, options: HttpOptions, private readonly maxAnswerBytes = MAX_ANSWER_BYTES) {
    this.#root = `${url.replace(/\/+$/, "")}/v1/`;
    this.#headers = { Authorization: `Bearer ${key}` };
    this.#timeoutSeconds = options.timeoutSeconds ?? 10;
    this.#retrySeconds = options.retrySeconds ?? 30;
    this.#fetch = options.fetch ?? ((asked, init) => globalThis.fetch(asked, init));
  }

  /**
   * Send a request, again where it may help.
   *
   * Rejects with ApiProblem where the service answered with an error, to the last attempt,
   * and with Unreachable where it did not answer.
   */
  async request(method: string, path: string, asked: Asked = {}): Promise<Answer> {
    const sent = this.#sent(method, path, asked);
    const deadline = performance.now() + 1000 * this.#retrySeconds;
    for (let wait = WAIT_FIRST_SECONDS; ; wait = Math.min(2 * wait, WAIT_MOST_SECONDS)) {
      let failure: ApiProblem | Unreachable;
      let wanted: number | undefined;
      try {
        const response = await this.#once(sent);
        if (response.status < 300 || response.status === 304) return response;
        failure = problemOf(response);
        wanted = retryAfterSeconds(response.headers);
        if (!TRY_AGAIN.includes(response.status)) throw failure;
      } catch (error) {
        if (error instanceof ApiProblem) throw error;
        sent.signal?.throwIfAborted();
        failure = new Unreachable(`no answer from ${this.#root} (${error instanceof Error ? error.name : "unknown"})`);
      }
      const pause = 1000 * (wanted ?? wait * (0.5 + Math.random())); // spread out; decides nothing private
      if (performance.now() + pause > deadline) throw failure;
      await slept(pause, sent.signal);
    }
  }

  #sent(method: string, path: string, asked: Asked): Sent {
    const json = asked.body === undefined ? undefined : { type: JSON_TYPE, bytes: JSON.stringify(asked.body) };
    const content = asked.content ?? json;
    const headers = { ...this.#headers, Accept: asked.accept ?? JSON_TYPE, ...asked.headers };
    return {
      method,
      url: this.#root + path,
      headers: content === undefined ? headers : { ...headers, "Content-Type": content.type },
      body: content?.bytes ?? null,
      seconds: this.#timeoutSeconds + (asked.extraSeconds ?? 0),
      signal: asked.signal,
    };
  }

  async #once({ method, url, headers, body, seconds, signal }: Sent): Promise<Answer> {
    const late = AbortSignal.timeout(1000 * seconds);
    const response = await this.#fetch(url, {
      method,
      headers,
      body,
      redirect: "error", // the key and the reports are for this service alone
      credentials: "omit",
      cache: "no-store",
      referrerPolicy: "no-referrer",
      signal: signal === undefined ? late : AbortSignal.any([late, signal]),
    });
    const bytes = await bounded(response, this.maxAnswerBytes);
    return { status: response.status, headers: response.headers, body: read(response, bytes, headers["Accept"]) };
  }
}

/** The body of an answer; a problem is JSON whatever was asked for. */
function read(response: Response, bytes: Uint8Array, accept: string | undefined): unknown {
  if (response.ok && accept === PNG_TYPE) return bytes;
  const text = new TextDecoder().decode(bytes);
  if (response.ok && accept !== JSON_TYPE) return text;
  try {
    return text === "" ? undefined : JSON.parse(text);
  } catch {
    throw unexpected(response.status, "the answer is not JSON");
  }
}

function slept(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const ended = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", ended);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", ended, { once: true });
  });
}

async function bounded(response: Response, maxBytes: number): Promise<Uint8Array> {
  if (response.body === null) return new Uint8Array();
  const reader = response.body.getReader();
  const pieces: Uint8Array[] = [];
  for (let length = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return joined(pieces, length);
    length += value.length;
    if (length > maxBytes) {
      await reader.cancel();
      throw unexpected(response.status, `the answer is over ${maxBytes} bytes long`);
    }
    pieces.push(value);
  }
}

function joined(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function problemOf(answer: Answer): ApiProblem {
  const document: Json | undefined = isObject(answer.body) && "code" in answer.body ? answer.body : undefined;
  return document ? new ApiProblem(answer.status, document) : unexpected(answer.status, "an error without a problem document");
}

export function unexpected(status: number, title: string): ApiProblem {
  return new ApiProblem(status, { code: "unexpected_answer", title, status });
}

/** What the `Retry-After` header says in seconds; a date is not read, since clocks differ. */
export function retryAfterSeconds(headers: Headers): number | undefined {
  const text = headers.get("Retry-After") ?? "";
  return /^\d{1,9}(\.\d+)?$/.test(text) ? Number(text) : undefined;
}
