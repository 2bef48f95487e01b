/**
 * Answers to a sent report: which of them settle it.
 *
 * Proxies, sign-in pages and wrong hosts answer requests too, with any status and body. A report is settled by the
 * service's receipt, or by a problem with a final code. After any other answer it is kept, and a later call sends the
 * same bytes. `openapi/vectors/answers.json` holds all SDKs to the same rules.
 */

import { isObject } from "./checks.js";
import type { ApiProblem } from "./errors.js";
import { FOREIGN, unexpectedResponse, type HttpResponse } from "./http.js";
import type { MemoState } from "./store.js";

/** Final problem codes. All other codes concern the key, a limit, the way or the service, and can end. */
const SETTLED_STATES: ReadonlyMap<string, MemoState> = new Map([
  ["round_closed", "closed"],
  ["report_malformed", "refused"], // the mechanism of the round cannot send it
  ["validation_failed", "refused"], // the report has another form
  ["conflict", "refused"], // the round accepts sealed reports only
  ["sealed_length", "refused"], // the shuffler: the report was sealed for another round
  ["already_reported", "refused"], // the shuffler: another device has sent a report with this key
]);

/** Throw ApiProblem unless a response is the receipt for one report to a round. */
export function checkReceipt({ status, body }: HttpResponse, roundId: string): void {
  const isReceipt = status === 202 && isObject(body) && body["round_id"] === roundId && body["accepted"] === 1;
  if (!isReceipt) throw unexpectedResponse(status, FOREIGN);
}

/** Return the final state of a report after a problem, or undefined if the report is kept. */
export function findSettledState(problem: ApiProblem): MemoState | undefined {
  return SETTLED_STATES.get(problem.code);
}
