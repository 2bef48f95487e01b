/**
 * A device: answers the rounds its user's cap allows, each once, and resends the same bytes.
 *
 *     fetch ──► own draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► remember ──► send
 *                                                                                (on disk)
 *
 * Nothing the service says is taken on trust: the cost of a round is computed here from its
 * published thresholds, what was spent is what this device remembers to have answered, and a
 * round that was answered is never perturbed again, whatever the record is by then.
 */

import { formatEpsilon, parseEpsilon } from "./accounting.js";
import { check, isObject, littleEndian } from "./checks.js";
import { SystemEntropy, type Entropy } from "./entropy.js";
import { ApiProblem, CapExceeded, InvalidSpec, RoundRefused, SfumatoError } from "./errors.js";
import { Http, retryAfterSeconds, unexpected, type HttpOptions } from "./http.js";
import { freshDraw, perturb, readRoundSpec, type Feature, type PersonRecord, type RoundSpec } from "./specs.js";
import { spentNano, type Memo, type MemoState, type Memory, type Store } from "./store.js";

const MAX_OPEN_ROUNDS = 64;
const DEFAULT_LOOK_AGAIN_SECONDS = 60;
const ID = /^(?!__proto__$)[A-Za-z0-9_-]{1,64}$/; // goes into paths and names properties, and comes from the service

/**
 * What became of a round: the service acknowledged the report just now; it did in an earlier
 * call; the round asks other devices; it closed before the report came (it was charged); this
 * device or the service refused. Of a call also: the dataset asks nothing now.
 */
export type Outcome = "sent" | "already_answered" | "not_drawn" | "too_late" | "refused" | "no_open_round";

/** One open round, and what became of it; `epsilon` is what it cost this device, 0 where it was not answered. */
export interface Answered {
  readonly roundId: string;
  readonly outcome: Outcome;
  readonly epsilon: number;
  readonly error?: SfumatoError;
}

/** What one call of `Device.report` did. */
export interface Receipt {
  /** The first of sent, too_late, already_answered, not_drawn that some round had; no_open_round where none was open. */
  readonly outcome: Outcome;
  /** Every open round, in the order the service lists them, then the reports to earlier rounds that were resent. */
  readonly rounds: readonly Answered[];
  /** When to look again, where no round is open. */
  readonly retryAfterSeconds?: number;
}

export interface DeviceOptions extends HttpOptions {
  /** Where the service is, without `/v1`. */
  readonly url: string;
  /** A key with the scope `device`. */
  readonly key: string;
  readonly datasetId: string;
  /** The user's own: the most epsilon this device ever spends on this dataset, in [1e-6, 32], at most nine decimals. */
  readonly cap: number | string;
  /** Where the device remembers. */
  readonly store: Store;
  /** What the app was built for; a round with any other features or bounds is refused. */
  readonly features?: readonly Feature[];
  /** Every coin the device tosses. */
  readonly entropy?: Entropy;
}

interface OpenRound {
  readonly roundId: string;
  readonly collectionId: string;
  readonly epsilon: unknown; // as the service declares it
  readonly spec: unknown;
  readonly specHash: string;
}

/** One person's device, for one dataset. */
export class Device {
  readonly #capNano: bigint;
  readonly #datasetId: string;
  readonly #store: Store;
  readonly #features: string | undefined;
  readonly #entropy: Entropy;
  readonly #http: Http;
  #etag: string | null = null;
  #open: readonly OpenRound[] = [];
  #lookAgainSeconds = DEFAULT_LOOK_AGAIN_SECONDS;

  /** @throws InvalidSpec The cap is no epsilon, or the dataset's id is none. */
  constructor(options: DeviceOptions) {
    this.#capNano = parseEpsilon(options.cap);
    this.#datasetId = checkedId(options.datasetId);
    this.#store = options.store;
    this.#features = options.features && featuresText(options.features);
    this.#entropy = options.entropy ?? new SystemEntropy();
    this.#http = new Http(options.url, options.key, options);
  }

  /**
   * Answer every open round that asks this device, and resend what is pending.
   *
   * Rejects with CapExceeded, RoundRefused, InvalidSpec, InvalidPoint or ApiProblem where every
   * open round that was left was refused for such a reason (the first is given) and no report
   * arrived; where one did, the reasons stand in the receipt. With StoreUnusable where the device
   * cannot remember, so it does not answer. With Unreachable where the service does not answer;
   * what was perturbed already is kept, and sent by the next call.
   *
   * @param record One value for each feature, in the features' units: clipped to the public
   *   bounds, perturbed, and kept nowhere.
   */
  async report(record: PersonRecord): Promise<Receipt> {
    const rounds = await this.#fetch();
    const { decided, waiting } = await this.#store.change(this.#datasetId, (memory) => {
      const made = new Map(rounds.map((asked) => [asked.roundId, this.#decide(memory, asked, record)]));
      return { decided: made, waiting: pending(memory).filter((memo) => made.get(memo.roundId)?.outcome !== "refused") };
    });
    for (const memo of waiting) decided.set(memo.roundId, await this.#send(memo));
    const answered = [...decided.values()];
    const outcome = outcomeOf(answered, rounds.length > 0);
    const wait = rounds.length > 0 ? {} : { retryAfterSeconds: this.#lookAgainSeconds };
    return { outcome, rounds: answered, ...wait };
  }

  /** The rounds answered here whose reports the service has not acknowledged yet. */
  async pending(): Promise<string[]> {
    return pending(await this.#store.read(this.#datasetId)).map((memo) => memo.roundId);
  }

  /** Resend what is pending, and only that; rejects with Unreachable, StoreUnusable or ApiProblem. */
  async flush(): Promise<readonly Answered[]> {
    const sent: Answered[] = [];
    for (const memo of pending(await this.#store.read(this.#datasetId))) sent.push(await this.#send(memo));
    const failed = sent.find((answered) => answered.error);
    if (failed?.error) throw failed.error;
    return sent;
  }

  /** The epsilon this device has answered for so far in this dataset. */
  async spent(): Promise<number> {
    return toNumber(spentNano(await this.#store.read(this.#datasetId)));
  }

  // ---- what the service asks ----

  async #fetch(): Promise<readonly OpenRound[]> {
    const headers: Record<string, string> = this.#etag === null ? {} : { "If-None-Match": this.#etag };
    const answer = await this.#http.request("GET", `datasets/${this.#datasetId}/round`, { headers });
    if (answer.status !== 304) {
      this.#open = await openRounds(answer.body, answer.status);
      this.#etag = answer.headers.get("ETag");
      this.#lookAgainSeconds = retryAfterSeconds(answer.headers) ?? DEFAULT_LOOK_AGAIN_SECONDS;
    }
    return this.#open;
  }

  // ---- what the device decides; only here is anything drawn ----

  #decide(memory: Memory, asked: OpenRound, record: PersonRecord): Answered {
    const { roundId, collectionId } = asked;
    try {
      const spec = readRoundSpec(asked.spec);
      const memo = own(memory.memos, roundId);
      if (memo !== undefined) {
        if (memo.collectionId !== collectionId || memo.specHash !== asked.specHash) {
          throw new RoundRefused(`${roundId} is no longer the round this device answered`);
        }
        return { roundId, outcome: "already_answered", epsilon: toNumber(BigInt(memo.epsilonNano)) };
      }
      const epsilonNano = this.#cost(asked, spec);
      const kept = own(memory.draws, collectionId) ?? freshDraw(this.#entropy).toString();
      memory.draws[collectionId] = kept;
      const draw = BigInt(kept);
      if (draw < spec.draw.lo || draw >= spec.draw.hi) return { roundId, outcome: "not_drawn", epsilon: 0 };
      const spent = spentNano(memory);
      if (spent + epsilonNano > this.#capNano) throw new CapExceeded(epsilonNano, spent, this.#capNano);
      memory.memos[roundId] = this.#perturbed(asked, spec, epsilonNano, record);
      return { roundId, outcome: "already_answered", epsilon: toNumber(epsilonNano) };
    } catch (error) {
      if (!(error instanceof SfumatoError)) throw error;
      return { roundId, outcome: "refused", epsilon: 0, error };
    }
  }

  /** What the round really costs; throws where it is not what it says or the app expects. */
  #cost(asked: OpenRound, spec: RoundSpec): bigint {
    if (this.#features !== undefined && featuresText(spec.features) !== this.#features) {
      throw new RoundRefused(`${asked.roundId} asks for other features than this app was built for`);
    }
    check(typeof asked.epsilon === "number", "a round's epsilon is a number");
    const declaredNano = parseEpsilon(asked.epsilon);
    const epsilonNano = spec.mechanism.epsilonNano;
    if (declaredNano < epsilonNano) {
      const [declared, real] = [formatEpsilon(declaredNano), formatEpsilon(epsilonNano)];
      throw new RoundRefused(`${asked.roundId} declares epsilon ${declared} and costs ${real}`);
    }
    return epsilonNano;
  }

  #perturbed(asked: OpenRound, spec: RoundSpec, epsilonNano: bigint, record: PersonRecord): Memo {
    const { slot, value } = perturb(spec, record, this.#entropy);
    return {
      roundId: asked.roundId,
      collectionId: asked.collectionId,
      epsilonNano: epsilonNano.toString(),
      specHash: asked.specHash,
      state: "pending",
      reportId: reportId(this.#entropy),
      slot,
      value: base64(value),
    };
  }

  // ---- what is sent: always the bytes of the memo ----

  async #send(memo: Memo): Promise<Answered> {
    const roundId = memo.roundId;
    const epsilon = toNumber(BigInt(memo.epsilonNano));
    const body = { report_id: memo.reportId, slot: memo.slot, value: memo.value };
    try {
      await this.#http.request("POST", `rounds/${roundId}/reports`, { body });
    } catch (error) {
      if (!(error instanceof ApiProblem)) throw error;
      if (error.code === "round_closed") {
        await this.#settle(memo, "closed");
        return { roundId, outcome: "too_late", epsilon };
      }
      if (isAboutTheReport(error)) await this.#settle(memo, "refused");
      return { roundId, outcome: "refused", epsilon, error };
    }
    await this.#settle(memo, "acknowledged");
    return { roundId, outcome: "sent", epsilon };
  }

  async #settle(memo: Memo, state: MemoState): Promise<void> {
    await this.#store.change(this.#datasetId, (memory) => {
      memory.memos[memo.roundId] = { ...memo, state, slot: null, value: null };
    });
  }
}

/** A property that was put there, not one that every object has. */
function own<T>(held: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(held, name) ? held[name] : undefined;
}

function pending(memory: Memory): Memo[] {
  return Object.values(memory.memos).filter((memo) => memo.state === "pending");
}

/** Whether sending it again can only fail again; not so for a key, a limit or a fault of the service. */
function isAboutTheReport(problem: ApiProblem): boolean {
  return problem.status >= 400 && problem.status < 500 && ![401, 403, 408, 429].includes(problem.status);
}

/** The most telling outcome; throws the first error where no report arrived. */
function outcomeOf(rounds: readonly Answered[], isOpen: boolean): Outcome {
  const outcomes = new Set(rounds.map((answered) => answered.outcome));
  const failed = rounds.find((answered) => answered.error);
  if (failed?.error && !outcomes.has("sent") && !outcomes.has("too_late")) throw failed.error;
  if (!isOpen) return "no_open_round";
  const order: readonly Outcome[] = ["sent", "too_late", "already_answered", "not_drawn"];
  return order.find((outcome) => outcomes.has(outcome)) ?? "refused";
}

function checkedId(value: unknown): string {
  check(typeof value === "string" && ID.test(value), "an id is 1 to 64 letters, digits, _ and -");
  return value;
}

/** Read the list of open rounds. The specs are read one by one, later. */
async function openRounds(wire: unknown, status: number): Promise<readonly OpenRound[]> {
  if (!isObject(wire)) throw unexpected(status, "the answer is not a JSON object");
  const rounds = wire["rounds"];
  check(Array.isArray(rounds) && rounds.length <= MAX_OPEN_ROUNDS, `open rounds are a list of at most ${MAX_OPEN_ROUNDS}`);
  const read = await Promise.all(
    rounds.map(async (item: unknown): Promise<OpenRound> => {
      check(isObject(item), "an open round is an object");
      const [roundId, collectionId] = [checkedId(item["id"]), checkedId(item["collection_id"])];
      const spec = item["spec"];
      return { roundId, collectionId, epsilon: item["epsilon"], spec, specHash: await digest(canonical(spec)) };
    }),
  );
  check(new Set(read.map((asked) => asked.roundId)).size === read.length, "an open round is listed twice");
  return read;
}

/** JSON with sorted keys: the same value gives the same text. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value) ?? "null";
  const parts = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${parts.join(",")}}`;
}

async function digest(text: string): Promise<string> {
  const subtle = globalThis.crypto?.subtle as SubtleCrypto | undefined; // browsers have it on https and localhost alone
  if (subtle === undefined) throw new InvalidSpec("crypto.subtle is missing: serve the page over https");
  return hex(new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(text))));
}

function featuresText(features: readonly Feature[]): string {
  return canonical(features.map(({ name, lower, upper, unit = "" }) => ({ name, lower, upper, unit })));
}

function reportId(entropy: Entropy): string {
  const halves = [freshDraw(entropy), freshDraw(entropy)];
  return halves.map((half) => hex(littleEndian(Number(half & 0xffffffffn), 4)) + hex(littleEndian(Number(half >> 32n), 4))).join("");
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

function toNumber(nano: bigint): number {
  return Number(nano) / 1e9;
}
