/**
 * Answers to a sent report: which of them settle it.
 *
 * Proxies, sign-in pages and wrong hosts answer requests too, with any status and body. A report is settled by the
 * service's receipt, or by a problem with a final code. After any other answer it is kept, and a later call sends the
 * same bytes. `openapi/vectors/answers.json` holds all SDKs to the same rules.
 */
package sfumato.device

/** Final problem codes. All other codes concern the key, a limit, the way or the service, and can end. */
private val SETTLED_STATES = mapOf(
    "round_closed" to MemoState.CLOSED,
    "report_malformed" to MemoState.REFUSED, // the mechanism of the round cannot send it
    "validation_failed" to MemoState.REFUSED, // the report has another form
    "conflict" to MemoState.REFUSED, // the round accepts sealed reports only
    "sealed_length" to MemoState.REFUSED, // the shuffler: the report was sealed for another round
    "already_reported" to MemoState.REFUSED, // the shuffler: another device has sent a report with this key
)

/** Throw ApiProblem unless a response is the receipt for one report to a round. */
internal fun checkReceipt(response: Response, roundId: String) {
    val receipt = if (response.status == 202) readJsonObject(response) else emptyMap<Any?, Any?>()
    val isReceipt = receipt["round_id"] == roundId && (receipt["accepted"] as? JsonNumber)?.text == "1"
    if (!isReceipt) throw unexpectedResponse(response.status, FOREIGN)
}

/** Return the final state of a report after a problem, or null if the report is kept. */
internal fun findSettledState(problem: ApiProblem): MemoState? = SETTLED_STATES[problem.code]
