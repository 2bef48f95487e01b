/**
 * A device that reports through a shuffler. Needs the library `org.bouncycastle:bcprov-jdk18on`, which the app declares.
 *
 *     fetch from the shuffler ──► signature? ──► enough honest reports? ──► as `Device` ──► seal ──► store ──► wrap, send
 *
 * The shuffler cannot open the report, and the service does not receive it from the device. A forwarder between device and
 * shuffler sees when the device sends, and bytes that occur in no batch. If shuffler and service work together, the local
 * epsilon of the report is the device's protection. The cap therefore limits the local epsilon.
 */
package sfumato.device

import java.math.BigDecimal
import java.math.BigInteger
import java.math.RoundingMode
import java.util.Base64

private const val SIGNATURE_HEADER = "sfumato-signature"
private const val OUTER_KEY_HEADER = "sfumato-outer-key"
private const val BASE64_GROUP = 4 // characters; the decoder takes a text without its padding too

/** A round with a valid signature of the shuffler. */
private class Announced(val bytes: ByteArray, val outerKey: ByteArray) {
    val members: Map<*, *> = try {
        asObject(readJson(String(bytes, Charsets.UTF_8)), "a round")
    } catch (_: NotJson) {
        throw InvalidSpec("a round must be JSON")
    }
}

/**
 * The device of one person for one dataset with the trust model `shuffled`.
 *
 * @param url URL of the shuffler, not of the service, without `/v1`. The app pins it.
 * @param key Key that the shuffler gave to this device.
 * @param cap Limit of the local epsilon; see `Device`, as for the other parameters.
 * @param shufflerKey Public key of the shuffler in base64, which the app pins. The device refuses rounds without its signature.
 * @param minHonestBatch The device refuses rounds whose release may contain fewer honest reports. At least 1. It also
 *   refuses rounds that keep reports.
 * @throws InvalidSpec A key, the number, the cap or the dataset id is not valid.
 */
public class ShuffledDevice(
    url: String,
    key: String,
    datasetId: String,
    cap: String,
    store: Store,
    shufflerKey: String,
    private val minHonestBatch: Int,
    features: List<Feature>? = null,
    entropy: Entropy = SystemEntropy(),
    retrySeconds: Double = 30.0,
    transport: Transport = UrlTransport(),
    clock: Clock = SystemClock,
    onOutside: ((List<String>) -> Unit)? = null,
    capPerPeriod: PeriodCap? = null,
    now: () -> Long = { System.currentTimeMillis() / 1000 },
    attributes: List<DeclaredAttribute> = emptyList(),
) : Device(
    url, key, datasetId, cap, store, features, entropy, retrySeconds, transport, clock, onOutside,
    capPerPeriod = capPerPeriod, now = now, attributes = attributes,
) {
    private val shufflerKey = decodeBase64(shufflerKey) ?: throw InvalidSpec("shufflerKey must be base64")
    private var announced: Map<String, Announced> = emptyMap()

    init {
        verifyRound("", ByteArray(0), ByteArray(0), ByteArray(0), this.shufflerKey) // throws if the key is not valid
        check(minHonestBatch >= 1) { "minHonestBatch must be at least 1" }
    }

    override fun fetchRounds(cancellation: Cancellation?): List<OpenRound> {
        val listed = readJsonObject(http.request("GET", "datasets/$datasetId/rounds", cancellation = cancellation))["rounds"]
        val ids = list(listed, "rounds", 0, MAX_OPEN_ROUNDS, ::readId)
        announced = ids.associateWith { announced[it] ?: fetchRound(it, cancellation) }
        val rounds = readOpenRounds(announced.values.map { it.members })
        if (rounds.map { it.roundId } != ids) throw RoundRefused("the shuffler sent another round than it lists")
        return rounds
    }

    /** Fetch a round. Throw RoundRefused if the shuffler's signature is not valid. */
    private fun fetchRound(roundId: String, cancellation: Cancellation?): Announced {
        val response = http.request("GET", "rounds/$roundId", cancellation = cancellation)
        val (signature, outerKey) = listOf(SIGNATURE_HEADER, OUTER_KEY_HEADER).map { decodeBase64(response.headers[it]) ?: ByteArray(0) }
        if (!verifyRound(roundId, response.body, outerKey, signature, shufflerKey)) {
            throw RoundRefused("$roundId is not signed with the key of the shuffler that this app pins")
        }
        wrap(ByteArray(0), roundId, outerKey) // throws if the key is not valid
        return Announced(response.body, outerKey)
    }

    override fun computeRoundCost(round: OpenRound, spec: RoundSpec): BigInteger {
        val members = announced.getValue(round.roundId).members
        val nHonest = countHonest(members["min_batch"], members["honest_share"])
        if (nHonest < minHonestBatch.toBigInteger()) {
            throw RoundRefused("${round.roundId} may be released with $nHonest honest reports; this device requires $minHonestBatch")
        }
        if (round.keepsReports) throw RoundRefused("${round.roundId} keeps reports, which a shuffled round must not do")
        return super.computeRoundCost(round, spec)
    }

    override fun perturbRecord(round: OpenRound, spec: RoundSpec, epsilonNano: BigInteger, record: PersonRecord): Memo {
        val (bytes, outerKey, members) = announced.getValue(round.roundId).let { Triple(it.bytes, it.outerKey, it.members) }
        val publicKey = decodeBase64(members["hpke_public_key"]) ?: throw InvalidSpec("a shuffled round states hpke_public_key in base64")
        val perturbed = perturb(spec, record, entropy)
        val sealed = seal(createReportId(entropy), perturbed.slot, perturbed.value, round.roundId, bytes, publicKey)
        val value = Base64.getEncoder().encodeToString(outerKey + sealed)
        return Memo(round.roundId, round.collectionId, epsilonNano, round.specHash, MemoState.PENDING, reportId = "", slot = null, value = value)
    }

    /** Send the stored report in a new outer layer, for the announced key or that of the time of the report. */
    override fun post(memo: Memo, cancellation: Cancellation?): Response {
        val stored = Base64.getDecoder().decode(memo.value)
        val outerKey = announced[memo.roundId]?.outerKey ?: stored.copyOf(KEY_BYTES)
        val sealed = stored.copyOfRange(KEY_BYTES, stored.size)
        return http.request("POST", "rounds/${memo.roundId}/sealed", content = { wrap(sealed, memo.roundId, outerKey) }, cancellation = cancellation)
    }
}

/** Return the number of honest reports of the smallest release, rounded down. */
private fun countHonest(minBatch: Any?, honestShare: Any?): BigInteger {
    val share = (honestShare as? JsonNumber)?.text?.takeIf { it.length <= MAX_CHARACTERS && DECIMAL.matches(it) }?.let(::BigDecimal)
    check(share != null && share.signum() > 0 && share <= BigDecimal.ONE) { "a shuffled round states honest_share in (0, 1]" }
    val batch = integer(minBatch, "min_batch", 1, Int.MAX_VALUE.toLong())
    return (BigDecimal(batch) * share!!).setScale(0, RoundingMode.FLOOR).toBigInteger()
}

/** Return the bytes of a base64 text, or null if it is not base64. */
private fun decodeBase64(text: Any?): ByteArray? = try {
    (text as? String)?.takeIf { it.length % BASE64_GROUP == 0 }?.let(Base64.getDecoder()::decode)
} catch (_: IllegalArgumentException) {
    null
}
