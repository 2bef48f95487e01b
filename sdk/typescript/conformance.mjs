/** The TypeScript device as an implementation of the conformance protocol; see docs/conformance.md. One line of JSON in, one out. */

import { createInterface } from "node:readline";

import { Device, SfumatoError, parseEpsilon, perturb, readRoundSpec } from "./dist/index.js";
import { FileStore } from "./dist/node.js";
import { seal, wrap } from "./dist/sealing.js";
import { ShuffledDevice } from "./dist/shuffled.js";
import { ReplayEntropy, encodeHex } from "./test/cases.mjs";

const NUMBERS = { nan: Number.NaN, inf: Number.POSITIVE_INFINITY, "-inf": Number.NEGATIVE_INFINITY };
const decodeHex = (text) => new Uint8Array(Buffer.from(text, "hex"));

/** Return a record with its numbers that JSON cannot express. */
function readRecord(value) {
  if (Array.isArray(value)) return value.map(readRecord);
  if (value === null || typeof value !== "object") return value;
  return "number" in value ? NUMBERS[value.number] : Object.fromEntries(Object.entries(value).map(([name, each]) => [name, readRecord(each)]));
}

async function report(call) {
  const entropy = typeof call.entropy === "string" ? new ReplayEntropy(call.entropy) : undefined;
  const sealed = call.shuffler_key !== undefined ? { shufflerKey: call.shuffler_key, minHonestBatch: call.min_honest_batch } : undefined;
  const answer = {};
  let device;
  try {
    const options = { url: call.url, key: call.key, datasetId: call.dataset_id, cap: call.cap, store: new FileStore(call.store), retrySeconds: call.retry_seconds, acceptKeptReports: call.accept_kept_reports, attributes: call.attributes, ...(call.cap_per_period && { capPerPeriod: call.cap_per_period }), ...(call.clock !== undefined && { now: () => 1000 * call.clock }) };
    device = new (sealed ? ShuffledDevice : Device)({ ...options, ...sealed, ...(entropy && { entropy }), ...(call.features && { features: call.features }) });
    const { outcome, rounds } = await device.report(readRecord(call.record));
    answer.outcome = outcome;
    answer.rounds = rounds.map((each) => ({ id: each.roundId, outcome: each.outcome, error: each.error?.code ?? null, outside: each.outside ?? [] }));
  } catch (error) {
    if (!(error instanceof SfumatoError)) throw error;
    answer.error = error.code;
  }
  if (entropy) answer.words_left = entropy.left.length;
  if (device && answer.error !== "store_unusable") Object.assign(answer, { spent: await device.spent(), pending: await device.pending() });
  return answer;
}

const CALLS = {
  describe: () => ({ protocol: 1, name: "TypeScript", sealed: true }),
  parse_epsilon: ({ epsilon }) => ({ epsilon_nano: parseEpsilon(epsilon).toString() }),
  perturb(call) {
    const [spec, entropy] = [readRoundSpec(call.spec), new ReplayEntropy(call.entropy)];
    const { slot, value } = perturb(spec, readRecord(call.record), entropy);
    return { slot, value: encodeHex(value), words_left: entropy.left.length, epsilon_nano: spec.mechanism.epsilonNano.toString(), value_bytes: spec.mechanism.valueBytes };
  },
  report,
  async seal(call) {
    const [reportId, value, round, key] = ["report_id", "value", "round", "public_key"].map((name) => decodeHex(call[name]));
    return { sealed: encodeHex(await seal(reportId, call.slot, value, call.round_id, round, key)) };
  },
  wrap: async (call) => ({ wrapped: encodeHex(await wrap(decodeHex(call.sealed), call.round_id, decodeHex(call.outer_key))) }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  let answer;
  try {
    answer = await CALLS[call.call](call);
  } catch (error) {
    if (!(error instanceof SfumatoError)) throw error;
    answer = { error: error.code };
  }
  process.stdout.write(`${JSON.stringify({ id: call.id, ...(answer.error ? answer : { result: answer }) })}\n`);
}
