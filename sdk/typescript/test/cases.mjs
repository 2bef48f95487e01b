/** Every published vector as something that can be run, on node and in a browser: throws where a device does otherwise. */

/** The given words, each once, in order. */
export class ReplayEntropy {
  constructor(hexWords) {
    this.left = BigUint64Array.from(hexWords.match(/.{16}/g) ?? [], (text) => {
      const bytes = text.match(/../g).reverse().join("");
      return BigInt(`0x${bytes}`);
    });
  }

  words(n) {
    if (n > this.left.length) throw new Error("more words were asked for than there are");
    const drawn = this.left.subarray(0, n);
    this.left = this.left.subarray(n);
    return drawn;
  }
}

/** Rounds a test sets, and every request it got; `replies` are played to reports first. */
export class ScriptedService {
  constructor(...rounds) {
    this.rounds = rounds;
    this.sent = [];
    this.asked = [];
    this.replies = [];
    this.fetch = async (url, init) => this.answer(new URL(url), init);
  }

  answer(url, init) {
    if (init.method === "GET") {
      this.asked.push(init.headers);
      const etag = `"${JSON.stringify(this.rounds).length}-${this.rounds.map((round) => round.id)}"`;
      if (init.headers["If-None-Match"] === etag) return new Response(null, { status: 304, headers: { ETag: etag } });
      const headers = { ETag: etag, "Content-Type": "application/json", ...(this.rounds.length ? {} : { "Retry-After": "17" }) };
      return new Response(JSON.stringify({ rounds: this.rounds }), { headers });
    }
    this.sent.push({ id: url.pathname.split("/").at(-2), body: init.body });
    const reply = this.replies.shift();
    if (reply instanceof Error) throw reply;
    return reply ?? Response.json({ accepted: 1 }, { status: 202 });
  }

  options(changes = {}) {
    return { url: "http://service.example", key: "sfk_device", datasetId: "ds_1", cap: 2, retrySeconds: 0, fetch: this.fetch, ...changes };
  }
}

/**
 * @param sfumato The package: `import * as sfumato`.
 * @param vectors The list of each file, by its name.
 * @param newStore Makes an empty store for one device.
 * @returns Cases, each with a name, how many reports it compares, and `run`.
 */
export function cases(sfumato, vectors, newStore) {
  const devices = [...vectors.devices, ...vectors.refusals];
  return [
    ...vectors.reports.map((vector) => ({ name: `reports: ${vector.name}`, n: vector.reports.length, run: () => reports(sfumato, vector) })),
    ...vectors.caps.map((vector) => ({ name: `cap: ${vector.epsilon}`, n: 0, run: () => cap(sfumato, vector) })),
    ...devices.map((vector) => ({ name: `device: ${vector.name}`, n: 0, run: () => device(sfumato, vector, newStore) })),
  ];
}

function reports({ readRoundSpec, perturb }, vector) {
  const spec = readRoundSpec(vector.spec);
  same(spec.mechanism.epsilonNano.toString(), vector.epsilon_nano);
  same(spec.mechanism.valueBytes, vector.value_bytes);
  for (const each of vector.reports) {
    const entropy = new ReplayEntropy(each.entropy);
    const { slot, value } = perturb(spec, each.record, entropy);
    same([slot, hex(value)], [each.slot, each.value]);
    same(entropy.left.length, 0); // as many words are drawn
  }
}

function cap({ parseEpsilon }, { epsilon, epsilon_nano: nano }) {
  same(parseEpsilon(epsilon).toString(), nano);
}

async function device({ Device, SfumatoError }, vector, newStore) {
  const store = newStore();
  for (const call of vector.calls) {
    const service = new ScriptedService(...call.open.rounds);
    const entropy = new ReplayEntropy(call.entropy);
    const asked = new Device(service.options({ cap: vector.cap, store, entropy }));
    const done = await asked.report(call.record).then((receipt) => ({ receipt }), (error) => ({ error }));
    if (call.error) {
      same([done.error instanceof SfumatoError, done.error?.code], [true, call.error]);
    } else {
      if (done.error) throw done.error;
      same(done.receipt.outcome, call.outcome);
      const told = done.receipt.rounds.map(({ roundId: id, outcome, error }) => ({ id, outcome, error: error?.code ?? null }));
      same(told, call.rounds);
    }
    const parsed = (sent) => sent.map(({ id, body }) => ({ id, body: JSON.parse(body) }));
    same(parsed(service.sent), parsed(call.sent));
    same(entropy.left.length, 0);
  }
}

function same(got, wanted) {
  if (canonical(got) !== canonical(wanted)) throw new Error(`${canonical(got)} is not ${canonical(wanted)}`);
}

/** JSON with sorted keys. */
function canonical(value) {
  const sorted = (_, item) => (item?.constructor === Object ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1))) : item);
  return JSON.stringify(value, sorted);
}

export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
