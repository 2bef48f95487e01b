/** The published vectors as test cases for Node.js and browsers. A case throws if a device behaves differently. */

/** An entropy source that returns each of the given words once, in order. */
export class ReplayEntropy {
  constructor(hexWords) {
    this.left = BigUint64Array.from(hexWords.match(/.{16}/g) ?? [], (text) => {
      const bytes = text.match(/../g).reverse().join("");
      return BigInt(`0x${bytes}`);
    });
  }

  words(n) {
    if (n > this.left.length) throw new Error("the device drew more words than the vector contains");
    const words = this.left.subarray(0, n);
    this.left = this.left.subarray(n);
    return words;
  }
}

/** A fake service with the given open rounds. It records requests and answers reports with `replies` first. */
export class ScriptedService {
  constructor(...rounds) {
    this.rounds = rounds;
    this.sent = [];
    this.roundRequests = [];
    this.replies = [];
    this.fetch = async (url, init) => this.answer(new URL(url), init);
  }

  answer(url, init) {
    if (init.method === "GET") {
      this.roundRequests.push(init.headers);
      const etag = `"${JSON.stringify(this.rounds).length}-${this.rounds.map((round) => round.id)}"`;
      if (init.headers["If-None-Match"] === etag) return new Response(null, { status: 304, headers: { ETag: etag } });
      const headers = { ETag: etag, "Content-Type": "application/json", ...(this.rounds.length ? {} : { "Retry-After": "17" }) };
      return new Response(JSON.stringify({ rounds: this.rounds }), { headers });
    }
    this.sent.push({ id: url.pathname.split("/").at(-2), body: init.body });
    const reply = this.replies.shift();
    if (reply instanceof Error) throw reply;
    return reply ?? Response.json({ round_id: this.sent.at(-1).id, accepted: 1 }, { status: 202 });
  }

  /** Return options of a device of this service. `changes` has its store. */
  options(changes = {}) {
    return { url: "http://service.example", key: "sfk_device", datasetId: "ds_1", cap: 2, retrySeconds: 0, fetch: this.fetch, ...changes };
  }
}

/**
 * Return the test cases of the vectors.
 *
 * @param sfumato The package: `import * as sfumato`.
 * @param vectors The vectors of each file, by file name.
 * @param newStore Function that returns an empty store for one device.
 * @returns Cases with a name, the number of compared reports, and the function `run`.
 */
export function createCases(sfumato, vectors, newStore) {
  const devices = [...vectors.devices, ...vectors.refusals];
  return [
    ...vectors.reports.map((vector) => ({ name: `reports: ${vector.name}`, n: vector.reports.length, run: () => checkReports(sfumato, vector) })),
    ...vectors.caps.map((vector) => ({ name: `cap: ${vector.epsilon}`, n: 0, run: () => checkCap(sfumato, vector) })),
    ...devices.map((vector) => ({ name: `device: ${vector.name}`, n: 0, run: () => checkDevice(sfumato, vector, newStore) })),
    ...vectors.answers.map((vector) => ({ name: `answer: ${vector.name}`, n: 0, run: () => checkAnswer(sfumato, vector, vectors.devices[0].calls[0], newStore) })),
  ];
}

function checkReports({ readRoundSpec, perturb }, vector) {
  const spec = readRoundSpec(vector.spec);
  checkEqual(spec.mechanism.epsilonNano.toString(), vector.epsilon_nano);
  checkEqual(spec.mechanism.valueBytes, vector.value_bytes);
  for (const each of vector.reports) {
    const entropy = new ReplayEntropy(each.entropy);
    const { slot, value } = perturb(spec, each.record, entropy);
    checkEqual([slot, encodeHex(value)], [each.slot, each.value]);
    checkEqual(entropy.left.length, 0); // the device drew all words
  }
}

function checkCap({ parseEpsilon }, { epsilon, epsilon_nano: nano }) {
  checkEqual(parseEpsilon(epsilon).toString(), nano);
}

async function checkDevice({ Device, SfumatoError }, vector, newStore) {
  const store = newStore();
  for (const call of vector.calls) {
    const service = new ScriptedService(...call.open.rounds);
    const entropy = new ReplayEntropy(call.entropy);
    const device = new Device(service.options({ cap: vector.cap, store, entropy, acceptKeptReports: vector.accept_kept_reports, features: vector.features ?? undefined, attributes: vector.attributes, capPerPeriod: vector.cap_per_period ?? undefined, now: () => 1000 * call.clock }));
    const result = await device.report(call.record).then((receipt) => ({ receipt }), (error) => ({ error }));
    if (call.error) {
      checkEqual([result.error instanceof SfumatoError, result.error?.code], [true, call.error]);
    } else {
      if (result.error) throw result.error;
      checkEqual(result.receipt.outcome, call.outcome);
      const rounds = result.receipt.rounds.map(({ roundId: id, outcome, error, outside = [] }) => ({ id, outcome, error: error?.code ?? null, outside }));
      checkEqual(rounds, call.rounds);
    }
    const parseBodies = (sent) => sent.map(({ id, body }) => ({ id, body: JSON.parse(body) }));
    checkEqual(parseBodies(service.sent), parseBodies(call.sent));
    checkEqual(entropy.left.length, 0);
  }
}

async function checkAnswer({ Device }, vector, call, newStore) {
  const [store, service] = [newStore(), new ScriptedService(...call.open.rounds)];
  const hasBody = ![204, 304].includes(vector.status); // `Response` forbids a body then
  service.replies.push(new Response(hasBody ? vector.body : null, { status: vector.status, headers: { "Content-Type": vector.content_type } }));
  const device = new Device(service.options({ store }));
  const error = await device.report(call.record).then(() => undefined, ({ code }) => code);
  checkEqual((await store.read("ds_1")).memos.rnd_1.state, vector.state);
  checkEqual(error === undefined, ["acknowledged", "closed"].includes(vector.state));
  const again = await device.report(call.record);
  checkEqual([again.outcome, service.sent.length], vector.state === "pending" ? ["sent", 2] : ["already_answered", 1]);
  checkEqual(new Set(service.sent.map(({ body }) => body)).size, 1);
  checkEqual(await device.spent(), call.open.rounds[0].epsilon);
}

function checkEqual(actual, expected) {
  if (toCanonicalJson(actual) !== toCanonicalJson(expected)) throw new Error(`${toCanonicalJson(actual)} is not ${toCanonicalJson(expected)}`);
}

/** Serialise a value as JSON with sorted keys. */
function toCanonicalJson(value) {
  const sorted = (_, item) => (item?.constructor === Object ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1))) : item);
  return JSON.stringify(value, sorted);
}

export function encodeHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
