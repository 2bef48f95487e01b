/**
 * A device that answers each open round at most once, within the user's cap.
 *
 *     fetch ──► draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► store ──► send
 *
 * The device does not trust the service. It computes the cost of a round from the published thresholds. It computes the
 * spent epsilon from its own memory, and counts periods by its own clock. It never perturbs a record twice for one round, even if the record has changed, but
 * resends the stored bytes until the service settles them with a receipt or a final problem.
 */

import { formatEpsilon, parseEpsilon } from "./accounting.js";
import { MAX_ATTRIBUTES, readAttributes, type Attribute, type AttributeDeclaration } from "./attributes.js";
import { encodeHex, encodeBase64 } from "./bytes.js";
import { check, encodeLittleEndian, isObject } from "./checks.js";
import { drawWord, SystemEntropy, type Entropy } from "./entropy.js";
import { ApiProblem, CapExceeded, InvalidSpec, RoundRefused, SfumatoError } from "./errors.js";
import { Http, readRetryAfter, unexpectedResponse, type HttpOptions, type RequestOptions } from "./http.js";
import { findDay, findFirstDay, findNextBegin, readPeriodCap, type PeriodCap } from "./periods.js";
import { checkReceipt, findSettledState } from "./receipts.js";
import { describeDifference, hasSpec, readId, readOpenRounds, type OpenRound } from "./rounds.js";
import { checkRecord, findOutside, ownAttributes, perturb, readRoundSpec, splitRecord, type Feature, type PersonRecord, type RecordCheck, type RoundSpec } from "./specs.js";
import { sumSpentNano, type Memo, type MemoState, type Memory, type Store } from "./store.js";
import { Turns } from "./turns.js";

export const DEFAULT_RETRY_AFTER_SECONDS = 60;

/**
 * Outcome of a round on this device, or of a call of `report`:
 *
 * - `sent`: the service acknowledged the report in this call;
 * - `already_answered`: the device answered the round in an earlier call;
 * - `not_selected`: the participation draw of the device is outside the round's interval;
 * - `too_late`: the round closed before the report arrived; its cost counts as spent;
 * - `refused`: no receipt arrived, and the error has the reason; `pending` lists the report if it is kept;
 * - `no_open_round`: the dataset has no open round (only for a call).
 */
export type Outcome = "sent" | "already_answered" | "not_selected" | "too_late" | "refused" | "no_open_round";

/** The outcome of one round. `epsilon` is the cost for this device, or 0 if the device sent no report. */
export interface RoundOutcome {
  readonly roundId: string;
  readonly outcome: Outcome;
  readonly epsilon: number;
  /** The reason, if the outcome is `refused`. */
  readonly error?: SfumatoError;
  /**
   * Features with a value outside of the bounds, if this call perturbed the record. The report then states `outside`, or
   * has the values moved to the bounds if the round clips them.
   */
  readonly outside?: readonly string[];
}

/** The outcome of one call of `Device.report`. */
export interface Receipt {
  /** First of `sent`, `too_late`, `already_answered`, `not_selected` that a round has, or `no_open_round`. */
  readonly outcome: Outcome;
  /** All open rounds in the order of the service, then earlier rounds whose pending reports were resent. */
  readonly rounds: readonly RoundOutcome[];
  /** Seconds until the next call is useful, if no round is open. */
  readonly retryAfterSeconds?: number;
  /** Where the memory is, for example the path of its file without links. */
  readonly store?: string;
  /** Features with a value outside of the bounds of a round that this call answered. */
  readonly outside: readonly string[];
}

/** Options of a device. */
export interface DeviceOptions extends HttpOptions {
  /** URL of the service without `/v1`. */
  readonly url: string;
  /** API key with the scope `device`. */
  readonly key: string;
  /** Dataset that receives the reports. */
  readonly datasetId: string;
  /** Largest epsilon that this device spends on the dataset, set by the user, in [1e-6, 32] with at most nine decimals. */
  readonly cap: number | string;
  /**
   * A second limit: the epsilon that this device spends on the dataset within a period of the calendar in UTC. The device
   * counts by its own clock, and its periods never go back. Without it, a service can spend the whole cap in a day.
   */
  readonly capPerPeriod?: PeriodCap;
  /** Storage for the memory of the device. */
  readonly store: Store;
  /**
   * Features that the app expects, as the dataset has them. The device refuses a round with other features or bounds. Without
   * them, it refuses rounds with a place on Earth, for every record. It refuses degrees that are no place, so a service could
   * otherwise call a feature a latitude and learn whether its value is beyond 90.
   */
  readonly features?: readonly Feature[];
  /**
   * The attributes that the app reports, as the dataset declares them. The device refuses rounds that need others, or that
   * declare them otherwise, for every record. So a service cannot learn whether a value is in another vocabulary. With
   * attributes, a record has names and contains their values, too: text, numbers, or null for a missing value.
   */
  readonly attributes?: readonly AttributeDeclaration[];
  /**
   * Called with the names of the features, once per device object, when a record outside of the bounds was perturbed. It is
   * for the developer: units or the order of values may be wrong. Do not log or send what it says in an app that
   * people use, because it is about their record.
   */
  readonly onOutside?: (features: readonly string[]) => void;
  /**
   * Whether the device answers rounds that keep its report after the tally (`keep_reports`). Ask the user before you set it.
   * The device refuses these rounds otherwise, and rounds that do not state it.
   */
  readonly acceptKeptReports?: boolean;
  /** Source of randomness; `SystemEntropy` by default. Replace it in tests only. */
  readonly entropy?: Entropy;
  /** Clock for `capPerPeriod`, in milliseconds since 1970-01-01 UTC; `Date.now` by default. Replace it in tests only. */
  readonly now?: () => number;
}

/** The open rounds of a dataset. */
export interface OpenRounds {
  readonly rounds: readonly OpenRound[];
  readonly retryAfterSeconds: number;
}

/** A perturbed report in the form in which the memory stores it. */
export type Payload = Pick<Memo, "reportId" | "slot" | "value">;

/** The request that sends a stored report. */
export interface ReportRequest {
  readonly path: string;
  readonly options: RequestOptions;
}

/** The device of one person for one dataset. */
export class Device {
  readonly #capNano: bigint;
  readonly #period: ReturnType<typeof readPeriodCap> | undefined;
  readonly #now: () => number;
  protected readonly datasetId: string;
  protected readonly store: Store;
  readonly #features: readonly Feature[] | undefined;
  readonly #attributes: readonly Attribute[];
  #onOutside: ((features: readonly string[]) => void) | undefined;
  readonly #acceptsKeptReports: boolean;
  protected readonly entropy: Entropy;
  protected readonly http: Http;
  readonly #turns = new Turns(); // one call of `report` or `flush` at a time
  #etag: string | null = null;
  #open: OpenRounds = { rounds: [], retryAfterSeconds: DEFAULT_RETRY_AFTER_SECONDS };

  /** @throws InvalidSpec A cap or the dataset id is invalid, or an attribute is not declared. */
  constructor(options: DeviceOptions) {
    this.#capNano = parseEpsilon(options.cap);
    this.#period = options.capPerPeriod && readPeriodCap(options.capPerPeriod);
    this.#now = options.now ?? (() => Date.now());
    this.datasetId = readId(options.datasetId);
    this.store = checkStore(options.store);
    this.#features = options.features && [...options.features];
    this.#attributes = readAttributes(options.attributes ?? [], 0, MAX_ATTRIBUTES);
    this.#onOutside = options.onOutside;
    this.#acceptsKeptReports = options.acceptKeptReports === true;
    this.entropy = options.entropy ?? new SystemEntropy();
    this.http = new Http(options.url, options.key, options);
  }

  /**
   * Answer all open rounds that select this device, and resend pending reports. Concurrent calls run one after the other.
   *
   * If at least one report arrives, errors of other rounds are part of the receipt. If no report arrives, the method
   * rejects with the first error.
   *
   * @param record One value per feature, in the units of the features. The device perturbs the record and does not
   *   store it. A record outside of the bounds is reported as outside, or moved to them, as the round states. A device that a
   *   round does not select does not read the record, so use `check` to find an invalid record at once.
   * @throws CapExceeded, RoundRefused, InvalidSpec, InvalidPoint or ApiProblem No report arrived; this is the first error.
   * @throws StoreUnusable The device memory cannot be used, so no report was sent.
   * @throws Unreachable The service does not respond. Perturbed reports stay pending, and the next call sends them.
   */
  report(record: PersonRecord): Promise<Receipt> {
    return this.#turns.run(() => this.#report(record));
  }

  async #report(record: PersonRecord): Promise<Receipt> {
    const { rounds, retryAfterSeconds } = await this.fetchRounds();
    const prepare = await this.prepareReports(rounds, record);
    const { decided, waiting } = await this.store.change(this.datasetId, (memory) => {
      const outcomes = new Map(rounds.map((round) => [round.roundId, this.#decide(memory, round, record, prepare)]));
      return { decided: outcomes, waiting: findPending(memory).filter((memo) => outcomes.get(memo.roundId)?.outcome !== "refused") };
    });
    for (const memo of waiting) {
      const outside = decided.get(memo.roundId)?.outside;
      decided.set(memo.roundId, { ...(await this.#send(memo)), ...(outside && { outside }) });
    }
    const outcomes = [...decided.values()];
    const outside = [...new Set(outcomes.flatMap((each) => each.outside ?? []))];
    if (outside.length > 0 && this.#onOutside !== undefined) {
      const tell = this.#onOutside;
      this.#onOutside = undefined;
      tell(outside);
    }
    const outcome = selectOutcome(outcomes, rounds.length > 0);
    const wait = rounds.length > 0 ? {} : { retryAfterSeconds };
    const { location } = this.store;
    return { outcome, rounds: outcomes, outside, ...wait, ...(location === undefined ? {} : { store: location }) };
  }

  /**
   * Check a record against the declared attributes, and against the features of the app or of the open rounds.
   *
   * The check sends no report, spends nothing and reads neither the memory nor the draws.
   *
   * @throws InvalidPoint The record is not valid.
   * @throws InvalidSpec The app passed no features, and no round is open.
   * @throws ApiProblem or Unreachable The open rounds cannot be read.
   */
  async check(record: PersonRecord): Promise<RecordCheck> {
    if (this.#features) return this.#check(this.#features, record);
    const { rounds } = await this.#turns.run(() => this.fetchRounds());
    const [first] = rounds.map((round) => this.#check(readRoundSpec(round.spec).features, record));
    if (first === undefined) throw new InvalidSpec("the features are unknown while no round is open: pass `features` to the device");
    return first;
  }

  #check(features: readonly Feature[], record: PersonRecord): RecordCheck {
    const { point, given } = splitRecord(features, this.#attributes, record);
    for (const each of this.#attributes) each.category(given[each.name]);
    return checkRecord(features, point);
  }

  /** Return the ids of rounds with reports that the service has not acknowledged yet. */
  async pending(): Promise<string[]> {
    return findPending(await this.store.read(this.datasetId)).map((memo) => memo.roundId);
  }

  /**
   * Resend pending reports without answering new rounds.
   *
   * @throws ApiProblem, Unreachable or StoreUnusable A report was not sent.
   */
  flush(): Promise<readonly RoundOutcome[]> {
    return this.#turns.run(() => this.#flush());
  }

  async #flush(): Promise<readonly RoundOutcome[]> {
    const sent: RoundOutcome[] = [];
    for (const memo of findPending(await this.store.read(this.datasetId))) sent.push(await this.#send(memo));
    const failed = sent.find((outcome) => outcome.error);
    if (failed?.error) throw failed.error;
    return sent;
  }

  /** Return the epsilon that this device has spent on the dataset. */
  async spent(): Promise<number> {
    return toNumber(sumSpentNano(await this.store.read(this.datasetId)));
  }

  /** Return the epsilon that this device has spent in the current period, or undefined without `capPerPeriod`. */
  async spentInPeriod(): Promise<number | undefined> {
    if (this.#period === undefined) return undefined;
    const memory = await this.store.read(this.datasetId);
    return toNumber(sumSpentNano(memory, findFirstDay(this.#period.period, findDay(this.#now(), memory))));
  }

  // ---- open rounds of the service ----

  /** Fetch the open rounds. */
  protected async fetchRounds(): Promise<OpenRounds> {
    const headers: Record<string, string> = this.#etag === null ? {} : { "If-None-Match": this.#etag };
    const response = await this.http.request("GET", `datasets/${this.datasetId}/round`, { headers });
    if (response.status !== 304) {
      if (!isObject(response.body)) throw unexpectedResponse(response.status, "the response is not a JSON object");
      const listed = response.body["rounds"];
      if (Array.isArray(listed) && listed.some((round) => isObject(round) && "hpke_public_key" in round)) {
        throw new RoundRefused("this dataset is shuffled: its shuffler takes sealed reports, and the service takes none");
      }
      const rounds = await readOpenRounds(listed);
      this.#open = { rounds, retryAfterSeconds: readRetryAfter(response.headers) ?? DEFAULT_RETRY_AFTER_SECONDS };
      this.#etag = response.headers.get("ETag");
    }
    return this.#open;
  }

  // ---- decisions of the device, with all its random choices ----

  /** Decide whether to answer a round, and add the perturbed report to the memory. */
  #decide(memory: Memory, round: OpenRound, record: PersonRecord, prepare: (round: OpenRound, spec: RoundSpec) => Payload): RoundOutcome {
    const { roundId, collectionId } = round;
    try {
      const spec = readRoundSpec(round.spec);
      const memo = getOwn(memory.memos, roundId);
      if (memo !== undefined) {
        if (memo.collectionId !== collectionId || !hasSpec(round, memo.specHash)) {
          throw new RoundRefused(`round ${roundId} has changed since this device answered it`);
        }
        return { roundId, outcome: "already_answered", epsilon: toNumber(BigInt(memo.epsilonNano)) };
      }
      const epsilonNano = this.computeCost(round, spec);
      if (!this.selects(memory, round, spec)) return { roundId, outcome: "not_selected", epsilon: 0 };
      const day = findDay(this.#now(), memory);
      this.#checkCaps(memory, epsilonNano, day);
      const payload = prepare(round, spec);
      memory.memos[roundId] = { roundId, collectionId, epsilonNano: epsilonNano.toString(), specHash: round.specHash, state: "pending", ...payload, day };
      const outside = findOutside(spec, this.partFor(spec, record));
      return { roundId, outcome: "already_answered", epsilon: toNumber(epsilonNano), ...(outside.length > 0 && { outside }) };
    } catch (error) {
      if (!(error instanceof SfumatoError)) throw error;
      return { roundId, outcome: "refused", epsilon: 0, error };
    }
  }

  /** Throw CapExceeded if a cost does not fit the lifetime cap or that of the period. */
  #checkCaps(memory: Memory, costNano: bigint, day: number): void {
    const spent = sumSpentNano(memory);
    if (spent + costNano > this.#capNano) throw new CapExceeded(costNano, spent, this.#capNano);
    if (this.#period === undefined) return;
    const { period, capNano } = this.#period;
    const inPeriod = sumSpentNano(memory, findFirstDay(period, day));
    if (inPeriod + costNano > capNano) throw new CapExceeded(costNano, inPeriod, capNano, period, findNextBegin(period, day));
  }

  /** Return whether a round selects this device. Draw for its collection first, if the memory has no draw. */
  protected selects(memory: Memory, { collectionId }: OpenRound, { participation }: RoundSpec): boolean {
    const draw = BigInt(getOwn(memory.draws, collectionId) ?? drawWord(this.entropy));
    memory.draws[collectionId] = draw.toString();
    return draw >= participation.lo && draw < participation.hi;
  }

  /** Compute the cost of a round in nano-epsilon. Throw RoundRefused if the device does not accept the round. */
  protected computeCost(round: OpenRound, spec: RoundSpec): bigint {
    const difference = describeDifference(this.#features, spec.features);
    if (difference !== undefined) throw new RoundRefused(`round ${round.roundId} has other features than this app expects: ${difference}`);
    const others = ownAttributes(spec).filter(({ name, declaration }) => this.#attributes.find((each) => each.name === name)?.declaration !== declaration);
    if (others.length > 0) {
      const names = others.map(({ name }) => name).join(", ");
      throw new RoundRefused(`round ${round.roundId} has attributes that this app does not declare, or declares otherwise: ${names}. Pass those of the dataset`);
    }
    if (round.keepsReports && !this.#acceptsKeptReports) {
      throw new RoundRefused(`round ${round.roundId} keeps reports after their tally: ask the user, then pass acceptKeptReports: true to the device`);
    }
    check(typeof round.epsilon === "number", "the epsilon of a round must be a number");
    const declaredNano = parseEpsilon(round.epsilon);
    const epsilonNano = spec.mechanism.epsilonNano;
    if (declaredNano < epsilonNano) {
      const [declared, actual] = [formatEpsilon(declaredNano), formatEpsilon(epsilonNano)];
      throw new RoundRefused(`round ${round.roundId} declares epsilon ${declared} but costs ${actual}`);
    }
    return epsilonNano;
  }

  /** Return a record without the attributes that a round does not need. */
  protected partFor(spec: RoundSpec, record: PersonRecord): PersonRecord {
    const needed = ownAttributes(spec).map(({ name }) => name);
    return leaveOut(record, this.#attributes.map(({ name }) => name).filter((name) => !needed.includes(name)));
  }

  /**
   * Prepare the reports that have to wait for something. Return the function that yields the report of a round.
   *
   * The memory changes in one transaction, which cannot wait. It calls the function only for reports that it stores.
   */
  protected async prepareReports(_rounds: readonly OpenRound[], record: PersonRecord): Promise<(round: OpenRound, spec: RoundSpec) => Payload> {
    return (_round, spec) => {
      const { slot, value } = perturb(spec, this.partFor(spec, record), this.entropy);
      return { reportId: createReportId(this.entropy), slot, value: encodeBase64(value) };
    };
  }

  // ---- sending ----

  /** Send the stored bytes of a report and store the response of the service. */
  async #send(memo: Memo): Promise<RoundOutcome> {
    const roundId = memo.roundId;
    const epsilon = toNumber(BigInt(memo.epsilonNano));
    const { path, options } = this.createRequest(memo);
    try {
      checkReceipt(await this.http.request("POST", path, options), roundId);
    } catch (error) {
      if (!(error instanceof ApiProblem)) throw error;
      const state = findSettledState(error);
      if (state !== undefined) await this.#settle(memo, state);
      return state === "closed" ? { roundId, outcome: "too_late", epsilon } : { roundId, outcome: "refused", epsilon, error };
    }
    await this.#settle(memo, "acknowledged");
    return { roundId, outcome: "sent", epsilon };
  }

  /** Create the request that sends the stored bytes of a report. */
  protected createRequest({ roundId, reportId, slot, value }: Memo): ReportRequest {
    return { path: `rounds/${roundId}/reports`, options: { body: { report_id: reportId, slot, value } } };
  }

  /** Store the final state of a report and delete its slot and value. */
  async #settle(memo: Memo, state: MemoState): Promise<void> {
    await this.store.change(this.datasetId, (memory) => {
      memory.memos[memo.roundId] = { ...memo, state, slot: null, value: null };
    });
  }
}

/** Return a record by name without the values of some names. Return another record as it is. */
function leaveOut(record: PersonRecord, names: readonly string[]): PersonRecord {
  if (names.length === 0 || !isObject(record) || isObject(record["coords"])) return record;
  return Object.fromEntries(Object.entries(record).filter(([name]) => !names.includes(name))) as PersonRecord;
}

/** Return an own property of an object. Ignore inherited ones, such as `constructor`. */
function getOwn<T>(object: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Return the store. Throw InvalidSpec if it has not the methods of a store. */
function checkStore(store: Store): Store {
  const { read, change } = (store ?? {}) as Partial<Store>;
  const remedy = "new FileStore(path) on Node.js, new IndexedDbStore() in a browser, or new AsyncStorageStore(AsyncStorage) in React Native";
  check(typeof read === "function" && typeof change === "function", `store must be a Store: pass ${remedy}`);
  return store;
}

function findPending(memory: Memory): Memo[] {
  return Object.values(memory.memos).filter((memo) => memo.state === "pending");
}

/** Return the outcome of a call. Throw the first error if no report arrived. */
function selectOutcome(rounds: readonly RoundOutcome[], isOpen: boolean): Outcome {
  const outcomes = new Set(rounds.map((round) => round.outcome));
  const failed = rounds.find((round) => round.error);
  if (failed?.error && !outcomes.has("sent") && !outcomes.has("too_late")) throw failed.error;
  if (!isOpen) return "no_open_round";
  const order: readonly Outcome[] = ["sent", "too_late", "already_answered", "not_selected"];
  return order.find((outcome) => outcomes.has(outcome)) ?? "refused";
}

/** Return a random report id of 32 hex digits. */
export function createReportId(entropy: Entropy): string {
  const words = [drawWord(entropy), drawWord(entropy)];
  const parts = words.flatMap((word) => [Number(word & 0xffffffffn), Number(word >> 32n)]);
  return parts.map((part) => encodeHex(encodeLittleEndian(part, 4))).join("");
}

function toNumber(nano: bigint): number {
  return Number(nano) / 1e9;
}
