/**
 * What browsers, Node.js and React Native do differently.
 *
 * React Native and other replacements of `fetch` have no streams, no `AbortSignal.timeout` and no `TextDecoder`. A missing
 * feature that has no substitute is an UnsupportedPlatform error, which names it.
 */

import { concatenate } from "./bytes.js";
import { Aborted, UnsupportedPlatform } from "./errors.js";

/** Return a time in milliseconds. Only differences are meaningful. */
export function now(): number {
  return typeof performance === "undefined" ? Date.now() : performance.now();
}

/** Return `crypto.subtle`, or undefined: browsers provide it only on https pages and localhost, and React Native does not. */
export function findSubtle(): SubtleCrypto | undefined {
  return (globalThis.crypto as Crypto | undefined)?.subtle as SubtleCrypto | undefined;
}

/** Return `crypto.subtle`. Throw UnsupportedPlatform if it is missing. */
export function requireSubtle(): SubtleCrypto {
  const subtle = findSubtle();
  if (subtle === undefined) throw new UnsupportedPlatform("crypto.subtle is missing: serve the page over https, or use a platform with WebCrypto");
  return subtle;
}

/** Return the origin of the page or worker, or undefined outside of a browser. */
export function findOrigin(): string | undefined {
  return (globalThis as { location?: { origin?: unknown } }).location?.origin?.toString();
}

/** Return the error for an aborted signal: the caller's own reason, or Aborted instead of the platform's DOMException. */
export function abortReason(signal: AbortSignal): unknown {
  const { reason } = signal as { reason?: unknown };
  const isDefault = reason === undefined || (typeof DOMException !== "undefined" && reason instanceof DOMException);
  return isDefault ? new Aborted(reason) : reason;
}

/**
 * Run `work` until it ends, the time is over or the signal is aborted.
 *
 * `work` receives a signal, if the platform has one. The promise rejects at the deadline even if `work` ignores the signal.
 */
export function runWithin<T>(seconds: number, signal: AbortSignal | undefined, work: (signal: AbortSignal | undefined) => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const controller = typeof AbortController === "undefined" ? undefined : new AbortController();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
    const fail = (error: unknown) => {
      end();
      reject(error);
      controller?.abort(); // stops a response that is too long or too late
    };
    const abort = () => fail(signal && abortReason(signal));
    const timer = setTimeout(() => fail(Object.assign(new Error("no response in time"), { name: "TimeoutError" })), 1000 * seconds);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) return abort();
    work(controller?.signal).then((value) => {
      end();
      resolve(value);
    }, fail);
  });
}

/** Wait for a time in milliseconds. Reject if the signal is aborted. */
export function pause(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal && abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort);
  });
}

/**
 * Read the body of a response, as text or as bytes.
 *
 * @param tooLong Returns the error for a body that is longer than `maxBytes`. Without streams the platform has received the
 *   body before its length is known, unless a header states the length.
 */
export async function readBody(response: Response, asBytes: boolean, maxBytes: number, tooLong: () => Error): Promise<Uint8Array | string> {
  if (Number(response.headers.get("Content-Length") ?? 0) > maxBytes) throw tooLong();
  const stream = response.body as Partial<ReadableStream<Uint8Array> & AsyncIterable<Uint8Array>> | null | undefined;
  const canDecode = asBytes || typeof TextDecoder !== "undefined";
  const pieces = canDecode && stream ? iterate(stream) : undefined;
  if (pieces === undefined) {
    const whole = asBytes ? new Uint8Array(await response.arrayBuffer()) : await response.text();
    if (whole.length > maxBytes) throw tooLong();
    return whole;
  }
  const read: Uint8Array[] = [];
  let length = 0;
  for await (const piece of pieces) {
    length += piece.length;
    if (length > maxBytes) throw tooLong();
    read.push(piece);
  }
  const bytes = concatenate(read);
  return asBytes ? bytes : new TextDecoder().decode(bytes);
}

/** Iterate over a web stream or a stream of Node.js. Return undefined for anything else. */
function iterate(stream: Partial<ReadableStream<Uint8Array> & AsyncIterable<Uint8Array>>): AsyncIterable<Uint8Array> | undefined {
  if (typeof stream.getReader === "function") return iterateReader(stream.getReader.bind(stream)());
  return typeof stream[Symbol.asyncIterator] === "function" ? (stream as AsyncIterable<Uint8Array>) : undefined;
}

async function* iterateReader(reader: ReadableStreamDefaultReader<Uint8Array>): AsyncGenerator<Uint8Array, void, void> {
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined); // after an early end; otherwise without effect
  }
}
