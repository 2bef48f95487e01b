/**
 * A device that reports through a shuffler.
 *
 *     fetch from the shuffler ──► signature? ──► enough honest reports? ──► as `Device` ──► seal ──► store ──► wrap, send
 *
 * The shuffler cannot open the report, and the service does not receive it from the device. A forwarder between device
 * and shuffler sees when the device sends, and bytes that occur in no batch. The device wraps the stored report in an
 * outer layer each time it sends it, and the shuffler removes the layer. If shuffler and service work together, the local
 * epsilon of the report is the device's protection. The cap therefore limits the local epsilon.
 */

import { concatenate, encodeBase64 } from "./bytes.js";
import { check, isObject, type Json } from "./checks.js";
import { DEFAULT_RETRY_AFTER_SECONDS, Device, createReportId } from "./device.js";
import type { DeviceOptions, OpenRounds, Payload, ReportRequest } from "./device.js";
import { InvalidSpec, RoundRefused, SfumatoError, UnsupportedPlatform } from "./errors.js";
import { requireSubtle } from "./platform.js";
import { MAX_OPEN_ROUNDS, readId, readOpenRounds, type OpenRound } from "./rounds.js";
import { KEY_BYTES, seal, wrap } from "./sealing.js";
import { perturb, readRoundSpec, type PersonRecord, type RoundSpec } from "./specs.js";
import type { Memo, Memory } from "./store.js";

const MAX_BATCH = 2 ** 31 - 1; // reports
const ROUND_LABEL = "sfumato round 2";
const SIGNATURE_HEADER = "Sfumato-Signature";
const OUTER_KEY_HEADER = "Sfumato-Outer-Key";
const PUBLIC_KEY_BYTES = 32;

/** Options of a device that reports through a shuffler. `url` and `key` are those of the shuffler. */
export interface ShuffledDeviceOptions extends DeviceOptions {
  /** Public key of the shuffler in base64, which the app pins. The device rejects rounds and outer keys without its signature. */
  readonly shufflerKey: string;
  /** The device rejects rounds whose release may contain fewer honest reports. */
  readonly minHonestBatch: number;
}

interface Announced {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly members: Json;
  readonly outerKey: Uint8Array<ArrayBuffer>;
}

/** The device of one person for one dataset with the trust model `shuffled`. */
export class ShuffledDevice extends Device {
  readonly #shufflerKey: Uint8Array<ArrayBuffer>;
  readonly #minHonestBatch: number;
  #announced = new Map<string, Announced>(); // rounds with a valid signature

  /** @throws InvalidSpec A key, the cap or a number is not valid. */
  constructor(options: ShuffledDeviceOptions) {
    super(options);
    this.#shufflerKey = decodeBase64(options.shufflerKey, "shufflerKey");
    check(this.#shufflerKey.length === PUBLIC_KEY_BYTES, `shufflerKey must have ${PUBLIC_KEY_BYTES} bytes`);
    this.#minHonestBatch = options.minHonestBatch;
    check(Number.isSafeInteger(this.#minHonestBatch) && this.#minHonestBatch >= 1, "minHonestBatch must be an integer of at least 1");
  }

  protected override async fetchRounds(): Promise<OpenRounds> {
    const { body } = await this.http.request("GET", `datasets/${this.datasetId}/rounds`);
    const listed = isObject(body) ? body["rounds"] : undefined;
    check(Array.isArray(listed) && listed.length <= MAX_OPEN_ROUNDS, `open rounds must be a list of at most ${MAX_OPEN_ROUNDS}`);
    const ids = listed.map(readId);
    const announced = await Promise.all(ids.map((roundId) => this.#announced.get(roundId) ?? this.#fetchRound(roundId)));
    this.#announced = new Map(ids.map((roundId, index) => [roundId, announced[index] as Announced]));
    const rounds = await readOpenRounds(announced.map(({ members }) => members));
    if (rounds.some(({ roundId }, index) => roundId !== ids[index])) throw new RoundRefused("the shuffler sent another round than it lists");
    return { rounds, retryAfterSeconds: DEFAULT_RETRY_AFTER_SECONDS };
  }

  /** Fetch a round. Throw RoundRefused if the shuffler's signature is not valid. */
  async #fetchRound(roundId: string): Promise<Announced> {
    const response = await this.http.request("GET", `rounds/${roundId}`, { asBytes: true });
    const bytes = new Uint8Array(response.body as Uint8Array);
    const digest = new Uint8Array(await requireSubtle().digest("SHA-256", bytes));
    const outerKey = decodeKey(response.headers.get(OUTER_KEY_HEADER));
    const announced = concatenate([new TextEncoder().encode(ROUND_LABEL + roundId), digest, outerKey]);
    if (outerKey.length !== KEY_BYTES || !(await verify(this.#shufflerKey, response.headers.get(SIGNATURE_HEADER) ?? "", announced))) {
      throw new RoundRefused(`${roundId} is not signed with the key of the shuffler that this app pins`);
    }
    await wrap(new Uint8Array(), roundId, outerKey); // throws if the key is not valid
    return { bytes, members: parseMembers(bytes), outerKey };
  }

  protected override computeCost(round: OpenRound, spec: RoundSpec): bigint {
    const { members } = this.#find(round);
    const nHonest = countHonest(members["min_batch"], members["honest_share"]);
    if (nHonest < BigInt(this.#minHonestBatch)) {
      throw new RoundRefused(`${round.roundId} may be released with ${nHonest} honest reports; this device requires ${this.#minHonestBatch}`);
    }
    if (round.keepsReports) throw new RoundRefused(`${round.roundId} keeps reports, which a shuffled round must not do`);
    return super.computeCost(round, spec);
  }

  /**
   * Seal a report for each new round that selects the device. A report that is not stored is never sent.
   *
   * The draws are stored first, so the record is read only for a round that selects the device.
   */
  protected override async prepareReports(rounds: readonly OpenRound[], record: PersonRecord): Promise<(round: OpenRound, spec: RoundSpec) => Payload> {
    const selected = await this.store.change(this.datasetId, (memory) => rounds.filter((round) => this.#isSelected(memory, round)));
    const sealed = new Map(await Promise.all(selected.map(async (round) => [round.roundId, await this.#sealReport(round, record)] as const)));
    return ({ roundId }) => {
      const payload = sealed.get(roundId);
      if (payload === undefined) throw new RoundRefused(`the answer to round ${roundId} is missing in the device memory`);
      if (payload instanceof SfumatoError) throw payload;
      return payload;
    };
  }

  /** Return whether the device has to answer a round. A round that it refuses is none of them. */
  #isSelected(memory: Memory, round: OpenRound): boolean {
    if (Object.hasOwn(memory.memos, round.roundId)) return false;
    try {
      const spec = readRoundSpec(round.spec);
      this.computeCost(round, spec);
      return this.selects(memory, round, spec);
    } catch (error) {
      if (error instanceof SfumatoError) return false;
      throw error;
    }
  }

  /** Return a sealed report, or the error that prevents it. */
  async #sealReport(round: OpenRound, record: PersonRecord): Promise<Payload | SfumatoError> {
    try {
      const spec = readRoundSpec(round.spec);
      const { bytes, members, outerKey } = this.#find(round);
      const publicKey = decodeBase64(members["hpke_public_key"], "hpke_public_key");
      const { slot, value } = perturb(spec, this.partFor(spec, record), this.entropy);
      const report = await seal(decodeHex(createReportId(this.entropy)), slot, value, round.roundId, bytes, publicKey);
      return { reportId: "", slot: null, value: encodeBase64(new Uint8Array([...outerKey, ...report])) };
    } catch (error) {
      if (error instanceof SfumatoError) return error;
      throw error;
    }
  }

  protected override createRequest({ roundId, value }: Memo): ReportRequest {
    const stored = decodeBase64(value, "the stored report");
    const outerKey = this.#announced.get(roundId)?.outerKey ?? stored.slice(0, KEY_BYTES);
    const bytes = () => wrap(stored.slice(KEY_BYTES), roundId, outerKey);
    return { path: `rounds/${roundId}/sealed`, options: { content: { type: "application/octet-stream", bytes } } };
  }

  #find({ roundId }: OpenRound): Announced {
    const announced = this.#announced.get(roundId);
    if (announced === undefined) throw new RoundRefused(`round ${roundId} is not announced by the shuffler`);
    return announced;
  }
}

/** Return the number of honest reports of the smallest release, rounded down. The share counts as the decimal that it prints as. */
function countHonest(minBatch: unknown, honestShare: unknown): bigint {
  check(typeof minBatch === "number" && Number.isInteger(minBatch) && minBatch >= 1 && minBatch <= MAX_BATCH, "min_batch of a shuffled round must be an integer from 1 to 2147483647");
  check(typeof honestShare === "number" && honestShare > 0 && honestShare <= 1, "a shuffled round states honest_share in (0, 1]");
  const [mantissa = "", exponent] = honestShare.toExponential().split("e");
  const digits = mantissa.replace(".", "");
  return (BigInt(minBatch) * BigInt(digits)) / 10n ** BigInt(digits.length - 1 - Number(exponent));
}

/** Return whether the owner of the Ed25519 key signed the bytes. Throw InvalidSpec if the key or the platform is not suitable. */
async function verify(publicKey: Uint8Array<ArrayBuffer>, signature: string, bytes: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const subtle = requireSubtle();
  let key: CryptoKey;
  try {
    key = await subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"]);
  } catch (error) {
    if (error instanceof Error && error.name === "NotSupportedError") throw new UnsupportedPlatform("crypto.subtle has no Ed25519: use a browser since 2025 or Node.js 20");
    throw new InvalidSpec("shufflerKey is not a valid Ed25519 key");
  }
  try {
    return await subtle.verify("Ed25519", key, decodeBase64(signature, SIGNATURE_HEADER), bytes);
  } catch {
    return false;
  }
}

function parseMembers(bytes: Uint8Array): Json {
  let members: unknown;
  try {
    members = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new InvalidSpec("a round must be JSON");
  }
  check(isObject(members), "a round must be a JSON object");
  return members;
}

function decodeBase64(text: unknown, name: string): Uint8Array<ArrayBuffer> {
  check(typeof text === "string" && /^[A-Za-z0-9+/]*={0,2}$/.test(text) && text.length % 4 === 0, `${name} must be base64`);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Return the bytes of a key in base64, or none if it is not base64. */
function decodeKey(text: string | null): Uint8Array<ArrayBuffer> {
  try {
    return decodeBase64(text, "the key");
  } catch {
    return new Uint8Array();
  }
}

function decodeHex(text: string): Uint8Array {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}
