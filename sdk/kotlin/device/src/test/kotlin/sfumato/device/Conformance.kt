/** The Kotlin device as an implementation of the conformance protocol; see docs/conformance.md. One line of JSON in, one out. */
package sfumato.device

import java.io.File
import java.math.BigInteger

/** An entropy source that returns each of the given words once, in order. A word is eight little-endian bytes in hex. */
class ReplayEntropy(hexWords: String) : Entropy {
    private val words = ArrayDeque(hexWords.chunked(16).map { BigInteger(1, decodeHex(it).reversedArray()) })

    val nLeft: Int get() = words.size

    override fun word(): BigInteger = words.removeFirstOrNull() ?: error("the device drew more words than the vector contains")
}

private fun decodeHex(text: Any?): ByteArray = (text as String).chunked(2).map { it.toInt(16).toByte() }.toByteArray()

/** Return a record. A value that is not a number cannot be in a record of this language. */
private fun readRecord(value: Any?): PersonRecord = when (value) {
    is List<*> -> OrderedRecord(*value.map(::readNumber).toDoubleArray())
    is Map<*, *> -> {
        val (others, numbers) = value.entries.partition { (_, each) -> each == null || each is String }
        NamedRecord(numbers.associate { (name, each) -> (name as String) to readNumber(each) }, others.associate { (name, each) -> (name as String) to each })
    }
    else -> throw InvalidPoint("the type of the record")
}

private fun readNumber(value: Any?): Double = when (value) {
    is JsonNumber -> value.text.toDouble()
    is Map<*, *> -> mapOf("nan" to Double.NaN, "inf" to Double.POSITIVE_INFINITY, "-inf" to Double.NEGATIVE_INFINITY)[value["number"]] ?: throw InvalidPoint("the type of a value")
    else -> throw InvalidPoint("the type of a value")
}

private fun perturb(call: Map<*, *>): Map<String, Any?> {
    val spec = readRoundSpec(call["spec"])
    val entropy = ReplayEntropy(call["entropy"] as String)
    val report = perturb(spec, readRecord(call["record"]), entropy)
    return mapOf(
        "slot" to report.slot,
        "value" to encodeHex(report.value),
        "words_left" to entropy.nLeft,
        "epsilon_nano" to spec.mechanism.epsilonNano().toString(),
        "value_bytes" to spec.mechanism.valueBytes,
    )
}

private fun createDevice(call: Map<*, *>, entropy: Entropy): Device {
    val (url, key, datasetId, cap) = listOf("url", "key", "dataset_id", "cap").map { call[it] as String }
    val store = FileStore(File(call["store"] as String))
    val features = (call["features"] as List<*>?)?.map(::readFeature)
    val retrySeconds = readNumber(call["retry_seconds"])
    val capPerPeriod = (call["cap_per_period"] as Map<*, *>?)?.let(::readPeriodCap)
    val clock = call["clock"]?.let { readNumber(it).toLong() }
    val now = { clock ?: (System.currentTimeMillis() / 1000) }
    val acceptKeptReports = call["accept_kept_reports"] as Boolean? ?: false
    val attributes = (call["attributes"] as List<*>?)?.map { DeclaredAttribute(readAttribute(it)) }.orEmpty()
    val shufflerKey = call["shuffler_key"] as String? ?: return Device(
        url, key, datasetId, cap, store, features, entropy, retrySeconds,
        acceptKeptReports = acceptKeptReports, capPerPeriod = capPerPeriod, now = now, attributes = attributes,
    )
    val minHonestBatch = readNumber(call["min_honest_batch"]).toInt()
    return ShuffledDevice(url, key, datasetId, cap, store, shufflerKey, minHonestBatch, features, entropy, retrySeconds, capPerPeriod = capPerPeriod, now = now, attributes = attributes)
}

/** Return the cap of a period. A period that is not known cannot be in an enum of this language. */
private fun readPeriodCap(limit: Map<*, *>): PeriodCap {
    val period = Period.entries.find { it.name.lowercase() == limit["period"] } ?: throw InvalidSpec("the period")
    return PeriodCap(period, limit["epsilon"] as String)
}

private fun report(call: Map<*, *>): Map<String, Any?> {
    val entropy = (call["entropy"] as String?)?.let(::ReplayEntropy)
    val answer = LinkedHashMap<String, Any?>()
    var device: Device? = null
    try {
        device = createDevice(call, entropy ?: SystemEntropy())
        val receipt = device.report(readRecord(call["record"]))
        answer["outcome"] = receipt.outcome.name.lowercase()
        answer["rounds"] = receipt.rounds.map {
            mapOf("id" to it.roundId, "outcome" to it.outcome.name.lowercase(), "error" to it.error?.code, "outside" to it.outside)
        }
    } catch (error: SfumatoException) {
        answer["error"] = error.code
    }
    entropy?.let { answer["words_left"] = it.nLeft }
    if (device != null && answer["error"] != "store_unusable") {
        answer["spent"] = JsonNumber(device.spent.toString())
        answer["pending"] = device.pending()
    }
    return answer
}

private fun seal(call: Map<*, *>): Map<String, Any?> {
    val (reportId, value, round, publicKey) = listOf("report_id", "value", "round", "public_key").map { decodeHex(call[it]) }
    return mapOf("sealed" to encodeHex(seal(reportId, readNumber(call["slot"]).toLong(), value, call["round_id"] as String, round, publicKey)))
}

private fun wrap(call: Map<*, *>): Map<String, Any?> =
    mapOf("wrapped" to encodeHex(wrap(decodeHex(call["sealed"]), call["round_id"] as String, decodeHex(call["outer_key"]))))

private fun answer(call: Map<*, *>): Map<String, Any?> = when (call["call"]) {
    "describe" -> mapOf("protocol" to 1, "name" to "Kotlin", "sealed" to true)
    "parse_epsilon" -> mapOf("epsilon_nano" to parseEpsilon(call["epsilon"] as String).toString())
    "perturb" -> perturb(call)
    "report" -> report(call)
    "seal" -> seal(call)
    "wrap" -> wrap(call)
    else -> error("unknown call")
}

fun main() {
    for (line in generateSequence(::readlnOrNull)) {
        val call = readJson(line) as Map<*, *>
        val answer = try {
            answer(call)
        } catch (error: SfumatoException) {
            mapOf("error" to error.code)
        }
        println(toCanonicalJson(mapOf("id" to call["id"]) + if ("error" in answer) answer else mapOf("result" to answer)))
    }
}
