/**
 * Sealed reports: reports that the shuffler carries and only the service opens, and their outer layer.
 *
 * HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM, by `@hpke/core` and WebCrypto:
 *
 *     info      = label || round id || SHA-256(round bytes)
 *     plaintext = report id (16 bytes) || slot (4 bytes, big-endian) || value
 *     sealed    = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)
 *
 * A device wraps the sealed report once more for the shuffler, each time it sends it:
 *
 *     info      = outer label || round id
 *     plaintext = sealed
 *     wrapped   = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)
 */

import { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";

import { concatenate } from "./bytes.js";
import { InvalidSpec } from "./errors.js";
import { requireSubtle } from "./platform.js";

const LABEL = "sfumato sealed report 1";
const OUTER_LABEL = "sfumato outer layer 1";
/** Length of each HPKE key. */
export const KEY_BYTES = 32;
const REPORT_ID_BYTES = 16;
const MAX_SLOT = 0xffffffff;

const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });

/**
 * Return a sealed report, 68 bytes longer than the value.
 *
 * A second call returns other bytes, so a device stores the sealed report and resends it.
 *
 * @param reportId 16 random bytes.
 * @param slot Integer in 0 .. 2^32 - 1.
 * @param value Perturbed value.
 * @param roundId Id of the round.
 * @param roundBytes The round as the device received it.
 * @param hpkePublicKey Public key of the round, 32 bytes.
 * @throws InvalidSpec if an argument has the wrong length or range, or the key is not valid.
 */
export async function seal(
  reportId: Uint8Array, slot: number, value: Uint8Array, roundId: string, roundBytes: Uint8Array, hpkePublicKey: Uint8Array,
): Promise<Uint8Array> {
  if (reportId.length !== REPORT_ID_BYTES || !Number.isInteger(slot) || slot < 0 || slot > MAX_SLOT) {
    throw new InvalidSpec(`a report id has ${REPORT_ID_BYTES} bytes, and a slot lies in 0 .. ${MAX_SLOT}`);
  }
  const slotBytes = new Uint8Array(4);
  new DataView(slotBytes.buffer).setUint32(0, slot);
  const plaintext = concatenate([reportId, slotBytes, value]);
  return encrypt(plaintext, hpkePublicKey, await roundInfo(roundId, roundBytes));
}

/**
 * Return a sealed report in an outer layer, 48 bytes longer. Only the shuffler removes the layer.
 *
 * A second call returns other bytes. A device stores the sealed report, and wraps it each time it sends it, so that a
 * forwarder cannot recognise it.
 *
 * @param sealed The sealed report.
 * @param roundId Id of the round.
 * @param outerPublicKey The shuffler's key of the round, 32 bytes, which its signature covers.
 * @throws InvalidSpec if the key has the wrong length or is not valid.
 */
export async function wrap(sealed: Uint8Array, roundId: string, outerPublicKey: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  return encrypt(copy(sealed), outerPublicKey, new TextEncoder().encode(OUTER_LABEL + roundId));
}

async function encrypt(
  plaintext: Uint8Array<ArrayBuffer>, publicKey: Uint8Array, info: Uint8Array<ArrayBuffer>,
): Promise<Uint8Array<ArrayBuffer>> {
  if (publicKey.length !== KEY_BYTES) throw new InvalidSpec(`an HPKE key has ${KEY_BYTES} bytes`);
  try {
    const recipientPublicKey = await suite.kem.deserializePublicKey(copy(publicKey).buffer);
    const { enc, ct } = await suite.seal({ recipientPublicKey, info: info.buffer }, plaintext.buffer);
    return concatenate([new Uint8Array(enc), new Uint8Array(ct)]);
  } catch {
    throw new InvalidSpec("the round's HPKE public key is not valid");
  }
}

/** Return the HPKE info of a round. */
export async function roundInfo(roundId: string, roundBytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const digest = await requireSubtle().digest("SHA-256", copy(roundBytes));
  return concatenate([new TextEncoder().encode(LABEL + roundId), new Uint8Array(digest)]);
}

function copy(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return new Uint8Array(bytes);
}
