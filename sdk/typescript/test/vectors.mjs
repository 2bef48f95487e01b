/** Helpers of the Node.js tests: committed vectors and problem responses. */

import { readFileSync } from "node:fs";

export { ReplayEntropy, ScriptedService, encodeHex } from "./cases.mjs";

export function loadVectors(name) {
  const path = new URL(`../../../openapi/vectors/${name}.json`, import.meta.url);
  return JSON.parse(readFileSync(path, "utf8"))[name];
}

export function problemResponse(status, code, members = {}) {
  const headers = { "Content-Type": "application/problem+json" };
  return Response.json({ type: `urn:sfumato:problem:${code}`, code, title: code, status, ...members }, { status, headers });
}
