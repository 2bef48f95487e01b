/**
 * A device: answers the rounds its user's cap allows, each once, and resends the same bytes.
 *
 *     fetch ──► own draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► remember ──► send
 *                                                                                (on disk)
 *
 * Nothing the service says is taken on trust: the cost of a round is computed here from its published
 * thresholds, what was spent is what this device remembers to have answered, and a round that was
 * answered is never perturbed again, whatever the record is by then.
 */
package sfumato.device

import java.math.BigInteger
import java.security.MessageDigest
import java.util.Base64

private const val MAX_OPEN_ROUNDS = 64
private const val DEFAULT_LOOK_AGAIN_SECONDS = 60.0
private val ID = Regex("[A-Za-z0-9_-]{1,64}") // goes into paths, and comes from the service
private val MAY_PASS = setOf(401, 403, 408, 429)

/** What became of a round on this device; of a call also: the dataset asks nothing now. */
public enum class Outcome {
    /** The service acknowledged the report just now. */
    SENT,

    /** It did in an earlier call. */
    ALREADY_ANSWERED,

    /** The round asks other devices. */
    NOT_DRAWN,

    /** It closed before the report came; it was charged. */
    TOO_LATE,

    /** By this device or by the service; the error says why. */
    REFUSED,

    NO_OPEN_ROUND,
}

/** One open round, and what became of it; `epsilon` is what it cost this device, 0 where it was not answered. */
public class Answered internal constructor(
    public val roundId: String,
    public val outcome: Outcome,
    public val epsilon: Double = 0.0,
    public val error: SfumatoException? = null,
)

/** What one call of `Device.report` did. */
public class Receipt internal constructor(
    /** The first of sent, too late, already answered, not drawn that some round had; no open round where none was open. */
    public val outcome: Outcome,
    /** Every open round, in the order the service lists them, then the reports to earlier rounds that were resent. */
    public val rounds: List<Answered>,
    /** When to look again, where no round is open. */
    public val retryAfterSeconds: Double?,
)

private class OpenRound(val roundId: String, val collectionId: String, val epsilon: Any?, val spec: Any?) {
    val specHash: String = sha256(canonical(spec))
}

/**
 * One person's device, for one dataset. Its calls block: make them from a thread of their own.
 *
 * @param url Where the service is, without `/v1`.
 * @param key A key with the scope `device`.
 * @param cap The user's own: the most epsilon this device ever spends on this dataset, in [1e-6, 32], at most nine decimals.
 * @param store Where the device remembers.
 * @param features What the app was built for; a round with any other features or bounds is refused.
 * @param entropy Every coin the device tosses.
 * @param retrySeconds After this long no further attempt is planned; 0 tries once.
 * @param transport How a request is sent.
 * @throws InvalidSpec The cap is no epsilon, or the dataset's id is none.
 */
public class Device(
    url: String,
    key: String,
    datasetId: String,
    cap: String,
    private val store: Store,
    private val features: List<Feature>? = null,
    private val entropy: Entropy = SystemEntropy(),
    retrySeconds: Double = 30.0,
    transport: Transport = UrlTransport(),
    patience: Patience = SystemPatience,
) {
    private val datasetId = checkedId(datasetId)
    private val capNano = parseEpsilon(cap)
    private val http = Http(url, key, retrySeconds, transport, patience)
    private var etag: String? = null
    private var open: List<OpenRound> = emptyList()
    private var lookAgainSeconds = DEFAULT_LOOK_AGAIN_SECONDS

    /**
     * Answer every open round that asks this device, and resend what is pending.
     *
     * @param record One value for each feature, in the features' units: clipped to the public bounds, perturbed, and kept nowhere.
     * @throws SfumatoException CapExceeded, RoundRefused, InvalidSpec, InvalidPoint or ApiProblem where every open round that was
     * left was refused for such a reason (the first is thrown) and no report arrived; where one did, the reasons stand in the
     * receipt. StoreUnusable where the device cannot remember, so it does not answer. Unreachable where the service does not
     * answer; what was perturbed already is kept, and sent by the next call.
     */
    @Synchronized
    public fun report(record: PersonRecord): Receipt {
        val rounds = fetch()
        val decided = LinkedHashMap<String, Answered>()
        val waiting = store.change(datasetId) { memory ->
            for (asked in rounds) decided[asked.roundId] = decide(memory, asked, record)
            pending(memory).filter { decided[it.roundId]?.outcome != Outcome.REFUSED }
        }
        for (memo in waiting) decided[memo.roundId] = send(memo)
        val answered = decided.values.toList()
        return Receipt(outcomeOf(answered, rounds.isNotEmpty()), answered, if (rounds.isEmpty()) lookAgainSeconds else null)
    }

    /** The rounds answered here whose reports the service has not acknowledged yet. */
    public fun pending(): List<String> = pending(store.read(datasetId)).map { it.roundId }

    /** Resend what is pending, and only that; throws Unreachable, StoreUnusable or ApiProblem. */
    @Synchronized
    public fun flush(): List<Answered> {
        val sent = pending(store.read(datasetId)).map(::send)
        sent.firstNotNullOfOrNull { it.error }?.let { throw it }
        return sent
    }

    /** The epsilon this device has answered for so far in this dataset. */
    public val spent: Double get() = toDouble(store.read(datasetId).spentNano)

    // ---- what the service asks ----

    private fun fetch(): List<OpenRound> {
        val headers = etag?.let { mapOf("If-None-Match" to it) } ?: emptyMap()
        val answer = http.request("GET", "datasets/$datasetId/round", headers = headers)
        if (answer.status != 304) {
            open = openRounds(objectOf(answer))
            etag = answer.headers["etag"]
            lookAgainSeconds = retryAfterSeconds(answer) ?: DEFAULT_LOOK_AGAIN_SECONDS
        }
        return open
    }

    // ---- what the device decides; only here is anything drawn ----

    private fun decide(memory: Memory, asked: OpenRound, record: PersonRecord): Answered = try {
        val spec = readRoundSpec(asked.spec)
        val memo = memory.memos[asked.roundId]
        if (memo != null) {
            if (memo.collectionId != asked.collectionId || memo.specHash != asked.specHash) {
                throw RoundRefused("${asked.roundId} is no longer the round this device answered")
            }
            Answered(asked.roundId, Outcome.ALREADY_ANSWERED, toDouble(memo.epsilonNano))
        } else {
            decideAnew(memory, asked, spec, record)
        }
    } catch (error: SfumatoException) {
        Answered(asked.roundId, Outcome.REFUSED, error = error)
    }

    private fun decideAnew(memory: Memory, asked: OpenRound, spec: RoundSpec, record: PersonRecord): Answered {
        val epsilonNano = cost(asked, spec)
        val draw = memory.draws.getOrPut(asked.collectionId) { entropy.word() }
        if (!spec.asks(draw)) return Answered(asked.roundId, Outcome.NOT_DRAWN)
        val spent = memory.spentNano
        if (spent + epsilonNano > capNano) {
            val (asks, was, cap) = listOf(epsilonNano, spent, capNano).map(::formatEpsilon)
            throw CapExceeded("this round costs $asks, $was of the cap of $cap is spent: nothing was sent")
        }
        memory.memos[asked.roundId] = perturbed(asked, spec, epsilonNano, record)
        return Answered(asked.roundId, Outcome.ALREADY_ANSWERED, toDouble(epsilonNano))
    }

    /** What the round really costs; throws where it is not what it says or the app expects. */
    private fun cost(asked: OpenRound, spec: RoundSpec): BigInteger {
        if (features != null && spec.features != features) {
            throw RoundRefused("${asked.roundId} asks for other features than this app was built for")
        }
        val declared = asked.epsilon as? JsonNumber ?: throw InvalidSpec("a round's epsilon is a number")
        val declaredNano = parseEpsilon(declared.text)
        val epsilonNano = spec.mechanism.epsilonNano()
        if (declaredNano < epsilonNano) {
            throw RoundRefused("${asked.roundId} declares epsilon ${formatEpsilon(declaredNano)} and costs ${formatEpsilon(epsilonNano)}")
        }
        return epsilonNano
    }

    private fun perturbed(asked: OpenRound, spec: RoundSpec, epsilonNano: BigInteger, record: PersonRecord): Memo {
        val made = perturb(spec, record, entropy)
        return Memo(
            roundId = asked.roundId,
            collectionId = asked.collectionId,
            epsilonNano = epsilonNano,
            specHash = asked.specHash,
            state = MemoState.PENDING,
            reportId = hex(littleEndian(entropy.word().toLong(), 8) + littleEndian(entropy.word().toLong(), 8)),
            slot = made.slot,
            value = Base64.getEncoder().encodeToString(made.value),
        )
    }

    // ---- what is sent: always the bytes of the memo ----

    private fun send(memo: Memo): Answered {
        val epsilon = toDouble(memo.epsilonNano)
        try {
            val body = mapOf("report_id" to memo.reportId, "slot" to memo.slot, "value" to memo.value)
            http.request("POST", "rounds/${memo.roundId}/reports", body)
        } catch (problem: ApiProblem) {
            if (problem.code == "round_closed") {
                settle(memo, MemoState.CLOSED)
                return Answered(memo.roundId, Outcome.TOO_LATE, epsilon)
            }
            if (isAboutTheReport(problem)) settle(memo, MemoState.REFUSED)
            return Answered(memo.roundId, Outcome.REFUSED, epsilon, problem)
        }
        settle(memo, MemoState.ACKNOWLEDGED)
        return Answered(memo.roundId, Outcome.SENT, epsilon)
    }

    private fun settle(memo: Memo, state: MemoState) {
        store.change(datasetId) { it.memos[memo.roundId] = memo.copy(state = state, slot = null, value = null) }
    }
}

private fun pending(memory: Memory): List<Memo> = memory.memos.values.filter { it.state == MemoState.PENDING }

/** Whether sending it again can only fail again; not so for a key, a limit or a fault of the service. */
private fun isAboutTheReport(problem: ApiProblem): Boolean = problem.status in 400..499 && problem.status !in MAY_PASS

/** The most telling outcome; throws the first error where no report arrived. */
private fun outcomeOf(rounds: List<Answered>, isOpen: Boolean): Outcome {
    val outcomes = rounds.map { it.outcome }
    val error = rounds.firstNotNullOfOrNull { it.error }
    if (error != null && Outcome.SENT !in outcomes && Outcome.TOO_LATE !in outcomes) throw error
    if (!isOpen) return Outcome.NO_OPEN_ROUND
    return listOf(Outcome.SENT, Outcome.TOO_LATE, Outcome.ALREADY_ANSWERED, Outcome.NOT_DRAWN).first { it in outcomes }
}

private fun checkedId(value: Any?): String {
    check(value is String && ID.matches(value)) { "an id is 1 to 64 letters, digits, _ and -" }
    return value as String
}

/** Read the list of open rounds. The specs are read one by one, later. */
private fun openRounds(wire: Map<*, *>): List<OpenRound> {
    val read = items(wire["rounds"], "open rounds", 0, MAX_OPEN_ROUNDS) { item ->
        val round = asObject(item, "an open round")
        OpenRound(checkedId(round["id"]), checkedId(round["collection_id"]), round["epsilon"], round["spec"])
    }
    check(read.map { it.roundId }.toSet().size == read.size) { "an open round is listed twice" }
    return read
}

internal fun sha256(text: String): String = hex(MessageDigest.getInstance("SHA-256").digest(text.toByteArray()))

private fun toDouble(nano: BigInteger): Double = nano.toDouble() / 1e9
