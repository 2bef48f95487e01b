/**
 * A device that answers each open round at most once, within the user's cap.
 *
 *     fetch ──► draw in [lo, hi)? ──► within the cap? ──► encode, perturb ──► store ──► send
 *
 * The device does not trust the service. It computes the cost of a round from the published thresholds. It computes the
 * spent epsilon from its own memory, and counts periods by its own clock. It never perturbs a record twice for one round, even if the record has changed, but
 * resends the stored bytes until the service settles them with a receipt or a final problem.
 */
package sfumato.device

import java.math.BigInteger
import java.security.MessageDigest
import java.util.Base64
import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock

internal const val MAX_OPEN_ROUNDS = 64
private const val DEFAULT_RETRY_AFTER_SECONDS = 60.0
private const val TURN_MILLISECONDS = 50L // between checks of a cancellation while another call has the turn
private val ID = Regex("[A-Za-z0-9_-]{1,64}") // ids from the service become URL paths

/** The outcome of a round on this device, or of a call of `report`. */
public enum class Outcome {
    /** The service acknowledged the report in this call. */
    SENT,

    /** The device answered the round in an earlier call. */
    ALREADY_ANSWERED,

    /** The participation draw of the device is outside the round's interval. */
    NOT_SELECTED,

    /** The round closed before the report arrived. Its cost counts as spent. */
    TOO_LATE,

    /** No receipt arrived, and `error` contains the reason. `pending` lists the report if it is kept. */
    REFUSED,

    /** The dataset has no open round. Only a call has this outcome. */
    NO_OPEN_ROUND,
}

/**
 * The outcome of one round. `epsilon` is the cost for this device, or 0 if the device sent no report.
 *
 * `outside` names the features with a value outside of the bounds, if this call perturbed the record. The report then says
 * `outside`, or has the values moved to the bounds if the round clips them.
 */
public class RoundOutcome internal constructor(
    public val roundId: String,
    public val outcome: Outcome,
    public val epsilon: Double = 0.0,
    public val error: SfumatoException? = null,
    public val outside: List<String> = emptyList(),
)

/** The outcome of one call of `Device.report`. */
public class Receipt internal constructor(
    /** First of SENT, TOO_LATE, ALREADY_ANSWERED, NOT_SELECTED that a round has, or NO_OPEN_ROUND. */
    public val outcome: Outcome,
    /** All open rounds in the order of the service, then earlier rounds with pending reports that were resent. */
    public val rounds: List<RoundOutcome>,
    /** Seconds until the next call is useful, if no round is open. */
    public val retryAfterSeconds: Double?,
    /** Where the memory is, for example the path of its file without links, or null if the store does not tell. */
    public val store: String?,
) {
    /** Features with a value outside of the bounds of a round that this call answered. */
    public val outside: List<String> get() = rounds.flatMap { it.outside }.distinct()
}

/** An open round as the service lists it. Its spec is read later. `keepsReports` is false only if the service promises to delete the report after its tally. */
internal class OpenRound(val roundId: String, val collectionId: String, val epsilon: Any?, val spec: Any?, val keepsReports: Boolean) {
    val specHash: String = sha256(toCanonicalJson(spec))
}

/**
 * The device of one person for one dataset. Its methods block, so call them from a background thread, or use `suspending()`.
 *
 * @param url URL of the service without `/v1`.
 * @param key API key with the scope `device`.
 * @param datasetId Dataset that receives the reports.
 * @param cap Largest epsilon that this device spends on the dataset, set by the user, in [1e-6, 32] with at most nine decimals.
 * @param store Storage for the memory of the device.
 * @param features Features that the app expects, as the dataset has them. The device refuses a round with other features or
 *   bounds. Without them, it refuses rounds with a place on Earth, for every record. It refuses degrees that are no place, so
 *   a service could otherwise call a feature a latitude and learn whether its value is beyond 90.
 * @param attributes The attributes that the app reports, as the dataset declares them. The device refuses rounds that need
 *   others, or that declare them otherwise, for every record. So a service cannot learn whether a value is in another
 *   vocabulary. With attributes, a record is a NamedRecord with their values, too.
 * @param onOutside Called with the names of the features, once per device object, when a record outside of the bounds was
 *   perturbed. It is for the developer: units or the order of values may be wrong. Do not log or send what it says in
 *   an app that people use, because it is about their record.
 * @param acceptKeptReports Whether the device answers rounds that keep its report after the tally (`keep_reports`). Ask the
 *   user before you set it. The device refuses these rounds otherwise, and rounds that do not state it.
 * @param entropy Source of randomness. Replace it in tests only.
 * @param retrySeconds Seconds during which a failed request is retried. 0 disables retries.
 * @param transport Sends the HTTP requests.
 * @param clock Clock for pauses between retries. Replace it in tests only.
 * @param capPerPeriod A second limit: the epsilon that this device spends on the dataset within a period. The device counts by
 *   its own clock, and its periods never go back. Without it, a service can spend the whole cap in a day.
 * @param now Clock for `capPerPeriod`, in seconds since 1970-01-01 UTC. Replace it in tests only.
 * @throws InvalidSpec The cap or the dataset id is invalid, or an attribute is declared twice.
 */
public open class Device(
    url: String,
    key: String,
    datasetId: String,
    cap: String,
    internal val store: Store,
    private val features: List<Feature>? = null,
    internal val entropy: Entropy = SystemEntropy(),
    retrySeconds: Double = 30.0,
    transport: Transport = UrlTransport(),
    clock: Clock = SystemClock,
    private var onOutside: ((List<String>) -> Unit)? = null,
    private val acceptKeptReports: Boolean = false,
    private val capPerPeriod: PeriodCap? = null,
    private val now: () -> Long = { System.currentTimeMillis() / 1000 },
    attributes: List<DeclaredAttribute> = emptyList(),
) {
    private val attributes: List<Attribute> = attributes.map { it.attribute }.also { all ->
        check(all.map { it.name }.toSet().size == all.size) { "attributes must have unique names" }
    }
    internal val datasetId: String = readId(datasetId)
    private val capNano = parseEpsilon(cap)
    internal val http: Http = Http(url, key, retrySeconds, transport, clock)
    private val turn = ReentrantLock(true)
    private var etag: String? = null
    private var open: List<OpenRound> = emptyList()
    private var retryAfterSeconds = DEFAULT_RETRY_AFTER_SECONDS

    /**
     * Answer all open rounds that select this device, and resend pending reports.
     *
     * If at least one report arrives, errors of other rounds are part of the receipt. If no report arrives, the method throws
     * the first error.
     *
     * @param record One value per feature, in the units of the features. The device perturbs the record and does not
     *   store it. A record outside of the bounds is reported as outside, or moved to them, as the round states. A device that
     *   a round does not select does not read the record, so use `check` to find an invalid record at once.
     * @throws SfumatoException No report arrived; the exception is the first error of a round.
     * @throws StoreUnusable The device memory cannot be used, so no report was sent.
     * @throws Unreachable The service does not respond. Perturbed reports stay pending, and the next call sends them.
     */
    public fun report(record: PersonRecord): Receipt = report(record, null)

    internal fun report(record: PersonRecord, cancellation: Cancellation?): Receipt = inTurn(cancellation) {
        val rounds = fetchRounds(cancellation)
        cancellation?.check() // later, the decisions are stored
        val decided = LinkedHashMap<String, RoundOutcome>()
        val waiting = store.change(datasetId) { memory ->
            for (round in rounds) decided[round.roundId] = decide(memory, round, record)
            findPending(memory).filter { decided[it.roundId]?.outcome != Outcome.REFUSED }
        }
        for (memo in waiting) {
            val sent = send(memo, cancellation)
            decided[memo.roundId] =
                RoundOutcome(sent.roundId, sent.outcome, sent.epsilon, sent.error, decided[memo.roundId]?.outside.orEmpty())
        }
        val outcomes = decided.values.toList()
        informOutside(outcomes.flatMap { it.outside }.distinct())
        Receipt(selectOutcome(outcomes, rounds.isNotEmpty()), outcomes, if (rounds.isEmpty()) retryAfterSeconds else null, store.location)
    }

    /** Inform the developer about a record outside of the bounds, once. */
    private fun informOutside(names: List<String>) {
        if (names.isEmpty()) return
        val tell = onOutside
        onOutside = null
        tell?.invoke(names)
    }

    /**
     * Check a record against the declared attributes, and against the features of the app or of the open rounds.
     *
     * The check sends no report, spends nothing and reads neither the memory nor the draws.
     *
     * @throws InvalidPoint The record is not valid.
     * @throws InvalidSpec The app passed no features, and no round is open.
     * @throws SfumatoException The open rounds cannot be read.
     */
    public fun check(record: PersonRecord): RecordCheck = check(record, null)

    internal fun check(record: PersonRecord, cancellation: Cancellation?): RecordCheck = inTurn(cancellation) {
        val known = features
        if (known != null) return@inTurn checkFor(known, record)
        fetchRounds(cancellation).map { checkFor(readRoundSpec(it.spec).features, record) }.firstOrNull()
            ?: throw InvalidSpec("the features are unknown while no round is open: pass `features` to the device")
    }

    private fun checkFor(features: List<Feature>, record: PersonRecord): RecordCheck {
        val (point, given) = splitRecord(features, attributes, record)
        for (each in attributes) each.category(given[each.name])
        return checkRecord(features, point)
    }

    /** Return the ids of rounds with reports that the service has not acknowledged yet. */
    public fun pending(): List<String> = findPending(store.read(datasetId)).map { it.roundId }

    /** Resend pending reports without answering new rounds. Throw ApiProblem, Unreachable or StoreUnusable if a report was not sent. */
    public fun flush(): List<RoundOutcome> = flush(null)

    internal fun flush(cancellation: Cancellation?): List<RoundOutcome> = inTurn(cancellation) {
        val sent = findPending(store.read(datasetId)).map { send(it, cancellation) }
        sent.firstNotNullOfOrNull { it.error }?.let { throw it }
        sent
    }

    /** The epsilon that this device has spent on the dataset. */
    public val spent: Double get() = toDouble(store.read(datasetId).spentNano)

    /** The epsilon that this device has spent in the current period, or null without `capPerPeriod`. */
    public val spentInPeriod: Double? get() = capPerPeriod?.let { limit ->
        val memory = store.read(datasetId)
        toDouble(memory.spentNanoSince(limit.period.firstDay(findDay(now(), memory))))
    }

    /** Let concurrent calls run one after the other. */
    private fun <T> inTurn(cancellation: Cancellation?, work: () -> T): T {
        if (cancellation == null) turn.lock() else while (!turn.tryLock(TURN_MILLISECONDS, TimeUnit.MILLISECONDS)) cancellation.check()
        try {
            return work()
        } finally {
            turn.unlock()
        }
    }

    // ---- open rounds of the service ----

    internal open fun fetchRounds(cancellation: Cancellation?): List<OpenRound> {
        val headers = etag?.let { mapOf("If-None-Match" to it) } ?: emptyMap()
        val response = http.request("GET", "datasets/$datasetId/round", headers = headers, cancellation = cancellation)
        if (response.status != 304) {
            val listed = readJsonObject(response)["rounds"]
            if ((listed as? List<*>)?.any { it is Map<*, *> && "hpke_public_key" in it } == true) {
                throw RoundRefused("this dataset is shuffled: its shuffler takes sealed reports, and the service takes none")
            }
            open = readOpenRounds(listed)
            etag = response.headers["etag"]
            retryAfterSeconds = readRetryAfter(response) ?: DEFAULT_RETRY_AFTER_SECONDS
        }
        return open
    }

    // ---- decisions of the device, with all its random choices ----

    /** Decide whether to answer a round, and add the perturbed report to the memory. */
    private fun decide(memory: Memory, round: OpenRound, record: PersonRecord): RoundOutcome = try {
        val spec = readRoundSpec(round.spec)
        val memo = memory.memos[round.roundId]
        if (memo != null) {
            if (memo.collectionId != round.collectionId || memo.specHash != round.specHash) {
                throw RoundRefused("round ${round.roundId} has changed since this device answered it")
            }
            RoundOutcome(round.roundId, Outcome.ALREADY_ANSWERED, toDouble(memo.epsilonNano))
        } else {
            decideNew(memory, round, spec, record)
        }
    } catch (error: SfumatoException) {
        RoundOutcome(round.roundId, Outcome.REFUSED, error = error)
    }

    private fun decideNew(memory: Memory, round: OpenRound, spec: RoundSpec, record: PersonRecord): RoundOutcome {
        val epsilonNano = computeRoundCost(round, spec)
        val draw = memory.draws.getOrPut(round.collectionId) { entropy.word() }
        if (!spec.selects(draw)) return RoundOutcome(round.roundId, Outcome.NOT_SELECTED)
        val day = findDay(now(), memory)
        checkCap(epsilonNano, memory.spentNano, capNano)
        capPerPeriod?.let { limit ->
            val (spent, name) = memory.spentNanoSince(limit.period.firstDay(day)) to limit.period.name.lowercase()
            checkCap(epsilonNano, spent, limit.capNano, " per $name", "; the next $name begins on ${limit.period.nextBegin(day)} (UTC)")
        }
        val part = leaveOut(record, attributes.map { it.name } - spec.attributes.map { it.name }.toSet())
        memory.memos[round.roundId] = perturbRecord(round, spec, epsilonNano, part).copy(day = day)
        val outside = findOutside(spec, part)
        return RoundOutcome(round.roundId, Outcome.ALREADY_ANSWERED, toDouble(epsilonNano), outside = outside)
    }

    private fun checkCap(costNano: BigInteger, spentNano: BigInteger, capNano: BigInteger, per: String = "", later: String = "") {
        if (spentNano + costNano <= capNano) return
        val (cost, used, cap) = listOf(costNano, spentNano, capNano).map(::formatEpsilon)
        throw CapExceeded("the round costs epsilon $cost, but $used of the cap of $cap$per is spent; no report was sent$later")
    }

    /** Compute the cost of a round in nano-epsilon. Throw RoundRefused if the device does not accept the round. */
    internal open fun computeRoundCost(round: OpenRound, spec: RoundSpec): BigInteger {
        val difference = describeDifference(features, spec.features)
        if (difference != null) throw RoundRefused("round ${round.roundId} has other features than this app expects: $difference")
        val declarations = attributes.associate { it.name to it.declaration }
        val others = spec.attributes.filter { declarations[it.name] != it.declaration }.map { it.name }
        if (others.isNotEmpty()) {
            throw RoundRefused(
                "round ${round.roundId} has attributes that this app does not declare, or declares otherwise: ${others.joinToString()}. " +
                    "Pass the attributes of the dataset to the device",
            )
        }
        if (round.keepsReports && !acceptKeptReports) {
            throw RoundRefused("round ${round.roundId} keeps reports after their tally: ask the user, then pass acceptKeptReports = true to the device")
        }
        val declared = round.epsilon as? JsonNumber ?: throw InvalidSpec("the epsilon of a round must be a number")
        val declaredNano = parseEpsilon(declared.text)
        val epsilonNano = spec.mechanism.epsilonNano()
        if (declaredNano < epsilonNano) {
            throw RoundRefused("round ${round.roundId} declares epsilon ${formatEpsilon(declaredNano)} but costs ${formatEpsilon(epsilonNano)}")
        }
        return epsilonNano
    }

    internal open fun perturbRecord(round: OpenRound, spec: RoundSpec, epsilonNano: BigInteger, record: PersonRecord): Memo {
        val perturbed = perturb(spec, record, entropy)
        return Memo(
            roundId = round.roundId,
            collectionId = round.collectionId,
            epsilonNano = epsilonNano,
            specHash = round.specHash,
            state = MemoState.PENDING,
            reportId = encodeHex(createReportId(entropy)),
            slot = perturbed.slot,
            value = Base64.getEncoder().encodeToString(perturbed.value),
        )
    }

    // ---- sending ----

    /** Send the stored bytes of a report and store the response of the service. */
    private fun send(memo: Memo, cancellation: Cancellation?): RoundOutcome {
        val epsilon = toDouble(memo.epsilonNano)
        try {
            checkReceipt(post(memo, cancellation), memo.roundId)
        } catch (problem: ApiProblem) {
            val state = findSettledState(problem)
            if (state != null) settle(memo, state)
            if (state == MemoState.CLOSED) return RoundOutcome(memo.roundId, Outcome.TOO_LATE, epsilon)
            return RoundOutcome(memo.roundId, Outcome.REFUSED, epsilon, problem)
        }
        settle(memo, MemoState.ACKNOWLEDGED)
        return RoundOutcome(memo.roundId, Outcome.SENT, epsilon)
    }

    /** Send the stored bytes of a report. */
    internal open fun post(memo: Memo, cancellation: Cancellation?): Response {
        val body = mapOf("report_id" to memo.reportId, "slot" to memo.slot, "value" to memo.value)
        return http.request("POST", "rounds/${memo.roundId}/reports", body, cancellation = cancellation)
    }

    /** Store the final state of a report and delete its slot and value. */
    private fun settle(memo: Memo, state: MemoState) {
        store.change(datasetId) { it.memos[memo.roundId] = memo.copy(state = state, slot = null, value = null) }
    }
}

/** Return a record by name without the values of some names. Return another record as it is. */
private fun leaveOut(record: PersonRecord, names: List<String>): PersonRecord =
    if (names.isEmpty() || record !is NamedRecord) record else record.without(names)

private fun findPending(memory: Memory): List<Memo> = memory.memos.values.filter { it.state == MemoState.PENDING }

/** Return the outcome of a call. Throw the first error if no report arrived. */
private fun selectOutcome(rounds: List<RoundOutcome>, isOpen: Boolean): Outcome {
    val outcomes = rounds.map { it.outcome }
    val error = rounds.firstNotNullOfOrNull { it.error }
    if (error != null && Outcome.SENT !in outcomes && Outcome.TOO_LATE !in outcomes) throw error
    if (!isOpen) return Outcome.NO_OPEN_ROUND
    return listOf(Outcome.SENT, Outcome.TOO_LATE, Outcome.ALREADY_ANSWERED, Outcome.NOT_SELECTED).first { it in outcomes }
}

/**
 * Describe how the features of a round differ from the expected ones. Return null if they do not.
 *
 * An app that expects no features takes all but a place: each finite number is then a valid value.
 */
private fun describeDifference(expected: List<Feature>?, actual: List<Feature>): String? {
    if (expected == null) {
        val isPlace = actual.any { it.coordinate != null }
        return if (isPlace) "it has a place. Declare the features of the app: pass those of the dataset" else null
    }
    val (wanted, found) = listOf(expected, actual).map { features -> features.map { it.name } }
    val parts = listOf("it lacks" to wanted - found.toSet(), "it also has" to found - wanted.toSet())
    return when {
        expected == actual -> null
        wanted.sorted() != found.sorted() -> parts.filter { it.second.isNotEmpty() }.joinToString(" and ") { (text, names) -> "$text ${names.joinToString()}" }
        wanted != found -> "its order is ${found.joinToString()}, not ${wanted.joinToString()}"
        else -> "the bounds, the unit or the shape of ${wanted.filterIndexed { n, _ -> expected[n] != actual[n] }.joinToString()} differ"
    }
}

/** Return 16 random bytes. */
internal fun createReportId(entropy: Entropy): ByteArray =
    encodeLittleEndian(entropy.word().toLong(), 8) + encodeLittleEndian(entropy.word().toLong(), 8)

/** Return an id of the service, which becomes a part of a path. Throw InvalidSpec if it has another form. */
internal fun readId(value: Any?): String {
    check(value is String && ID.matches(value)) { "an id must have 1 to 64 characters: letters, digits, _ or -" }
    return value as String
}

/** Validate the list of open rounds. Each spec is validated later, so that one invalid spec does not affect other rounds. */
internal fun readOpenRounds(listed: Any?): List<OpenRound> {
    val open = list(listed, "rounds", 0, MAX_OPEN_ROUNDS) { item ->
        val round = asObject(item, "an open round")
        OpenRound(readId(round["id"]), readId(round["collection_id"]), round["epsilon"], round["spec"], round["keep_reports"] != false)
    }
    check(open.map { it.roundId }.toSet().size == open.size) { "an open round is listed twice" }
    return open
}

/** Return the SHA-256 of a text in hex. */
internal fun sha256(text: String): String = encodeHex(MessageDigest.getInstance("SHA-256").digest(text.toByteArray()))

private fun toDouble(nano: BigInteger): Double = nano.toDouble() / 1e9
