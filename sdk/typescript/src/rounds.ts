/** Open rounds as a service lists them. */

import { encodeHex } from "./bytes.js";
import { check, isObject } from "./checks.js";
import { UnsupportedPlatform } from "./errors.js";
import { findSubtle } from "./platform.js";
import type { Feature } from "./specs.js";

export const MAX_OPEN_ROUNDS = 64;
const ID = /^(?!__proto__$)[A-Za-z0-9_-]{1,64}$/; // ids from the service become URL paths and property names

/** An open round as the service lists it. */
export interface OpenRound {
  readonly roundId: string;
  readonly collectionId: string;
  readonly epsilon: unknown; // cost declared by the service, not validated yet
  readonly spec: unknown;
  /** Whether the service may keep the report after its tally. True if the round does not state it. */
  readonly keepsReports: boolean;
  /** The spec as JSON with sorted keys. */
  readonly specText: string;
  /** SHA-256 of `specText` in hex, or `specText` on a platform without `crypto.subtle`. */
  readonly specHash: string;
}

/** Validate an id, which becomes part of URL paths. */
export function readId(value: unknown): string {
  check(typeof value === "string" && ID.test(value), "an id must have 1 to 64 characters: letters, digits, _ or -");
  return value;
}

/** Validate the list of open rounds. Each spec is validated later, so that one invalid spec does not affect other rounds. */
export async function readOpenRounds(rounds: unknown): Promise<readonly OpenRound[]> {
  check(Array.isArray(rounds) && rounds.length <= MAX_OPEN_ROUNDS, `rounds must be a list of at most ${MAX_OPEN_ROUNDS} items`);
  const open = await Promise.all(
    rounds.map(async (item: unknown): Promise<OpenRound> => {
      check(isObject(item), "an open round must be an object");
      const [roundId, collectionId] = [readId(item["id"]), readId(item["collection_id"])];
      const spec = item["spec"];
      const specText = toCanonicalJson(spec);
      const keepsReports = item["keep_reports"] !== false;
      return { roundId, collectionId, epsilon: item["epsilon"], spec, keepsReports, specText, specHash: await hashText(specText) };
    }),
  );
  check(new Set(open.map((round) => round.roundId)).size === open.length, "an open round is listed twice");
  return open;
}

/** Return whether a round has the spec that the memory recorded with `specHash`. */
export function hasSpec({ specText, specHash }: OpenRound, recorded: string): boolean {
  if (recorded === specHash || recorded === specText) return true;
  const isHash = !recorded.startsWith("{");
  if (isHash && specHash === specText) throw new UnsupportedPlatform("crypto.subtle is missing, and this device memory was written with it");
  return false;
}

/**
 * Describe how the features of a round differ from the expected ones. Return undefined if they do not.
 *
 * An app that expects no features takes all but a place: each finite number is then a valid value.
 */
export function describeDifference(expected: readonly Feature[] | undefined, actual: readonly Feature[]): string | undefined {
  if (expected === undefined) return actual.some(({ coordinate }) => coordinate) ? "it has a place. Declare the features of the app: pass those of the dataset" : undefined;
  const names = (features: readonly Feature[]) => features.map(({ name }) => name);
  const [wanted, found] = [names(expected), names(actual)];
  const missing = wanted.filter((name) => !found.includes(name));
  const extra = found.filter((name) => !wanted.includes(name));
  if (missing.length > 0 || extra.length > 0 || wanted.length !== found.length) {
    return [missing.length > 0 ? `it lacks ${missing.join(", ")}` : "", extra.length > 0 ? `it also has ${extra.join(", ")}` : ""].filter(Boolean).join(" and ") || "a feature is given twice";
  }
  if (wanted.join() !== found.join()) return `its order is ${found.join(", ")}, not ${wanted.join(", ")}`;
  const changed = expected.filter(({ lower, upper, unit = "", periodic = false, coordinate }, index) => {
    const other = actual[index] as Feature;
    return lower !== other.lower || upper !== other.upper || unit !== (other.unit ?? "") || periodic !== (other.periodic ?? false) || coordinate !== other.coordinate;
  });
  return changed.length > 0 ? `the bounds, the unit or the shape of ${names(changed).join(", ")} differ` : undefined;
}

/** Serialise a value as JSON with sorted keys, so that equal values give the same text. */
function toCanonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(toCanonicalJson).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value) ?? "null";
  const parts = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${toCanonicalJson(value[key])}`);
  return `{${parts.join(",")}}`;
}

async function hashText(text: string): Promise<string> {
  const subtle = findSubtle();
  return subtle === undefined ? text : encodeHex(new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(text))));
}
