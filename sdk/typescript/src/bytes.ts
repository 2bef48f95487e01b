/** Bytes as text. React Native has no `btoa`. */

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Encode bytes in base64. */
export function encodeBase64(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 3) {
    const [first = 0, second = 0, third = 0] = bytes.subarray(at, at + 3);
    const word = (first << 16) | (second << 8) | third;
    text += [18, 12, 6, 0].map((shift) => DIGITS[(word >> shift) & 63]).join("");
  }
  const padding = (3 - (bytes.length % 3)) % 3;
  return text.slice(0, text.length - padding) + "=".repeat(padding);
}

/** Encode bytes in hex. */
export function encodeHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the bytes of all pieces. */
export function concatenate(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
