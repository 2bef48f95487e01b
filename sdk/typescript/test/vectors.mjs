/** What the tests on node share: the committed vectors, and a refusal. */

import { readFileSync } from "node:fs";

export { ReplayEntropy, ScriptedService, hex } from "./cases.mjs";

export function vectors(name) {
  const path = new URL(`../../../openapi/vectors/${name}.json`, import.meta.url);
  return JSON.parse(readFileSync(path, "utf8"))[name];
}

export function refusal(status, code) {
  return Response.json({ code, title: code, status }, { status });
}
