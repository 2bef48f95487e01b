/** Checks of this device against every byte and every random word of the published vectors. */
package sfumato.device

import java.io.File
import java.math.BigInteger

/** A failed check. */
class CheckFailed(message: String) : Exception(message)

/** Throw CheckFailed unless the values are equal. */
fun checkEqual(actual: Any?, expected: Any?) {
    if (actual != expected) throw CheckFailed("$actual is not $expected")
}

/** An entropy source that returns each of the given words once, in order. A word is eight little-endian bytes in hex. */
class ReplayEntropy(hexWords: String) : Entropy {
    private val words = ArrayDeque(
        hexWords.chunked(16).map { text -> BigInteger(1, text.chunked(2).reversed().map { it.toInt(16).toByte() }.toByteArray()) },
    )

    val nLeft: Int get() = words.size

    override fun word(): BigInteger = words.removeFirstOrNull() ?: throw CheckFailed("the device drew more words than the vector contains")
}

/** A fake service with the given open rounds. It records requests and answers reports with `replies` first. */
class ScriptedService(private val open: Any?) : Transport {
    val sent = ArrayList<Pair<String, String>>()
    val requests = ArrayList<Request>()
    val replies = ArrayDeque<() -> Response>()

    override fun send(request: Request): Response {
        requests.add(request)
        if (request.method == "GET") return Response(200, mapOf("etag" to "\"1\"", "retry-after" to "17"), toCanonicalJson(open).toByteArray())
        sent.add(Pair(request.url.split("/").let { it[it.size - 2] }, String(request.body!!)))
        return (replies.removeFirstOrNull() ?: { Response(202, emptyMap(), """{"round_id":"${sent.last().first}","accepted":1}""".toByteArray()) })()
    }
}

/** A clock that advances only by its pauses. */
class FakeClock : Clock {
    private var now = 0.0
    val pauses = ArrayList<Double>()

    override fun seconds(): Double = now

    override fun sleep(seconds: Double) {
        pauses.add(seconds)
        now += seconds
    }

    override fun jitter(): Double = 1.0
}

fun device(
    service: Transport, store: Store, entropy: Entropy, cap: String, retrySeconds: Double = 0.0, clock: Clock = FakeClock(), acceptKeptReports: Boolean = false,
): Device = Device(
    "http://service.example", "sfk_device", "ds_1", cap, store, null, entropy, retrySeconds, service, clock, acceptKeptReports = acceptKeptReports,
)

/** A test case with its name and number of compared reports. */
class Case(val name: String, val nReports: Int, val run: () -> Unit)

/** Read the vectors of one file. */
fun readVectors(directory: File, name: String): List<Map<*, *>> {
    val document = readJson(File(directory, "$name.json").readText()) as Map<*, *>
    return (document[name] as List<*>).map { it as Map<*, *> }
}

/** Return the test cases of all vectors. */
fun createVectorCases(directory: File): List<Case> =
    readVectors(directory, "reports").map { Case("reports: ${it["name"]}", (it["reports"] as List<*>).size) { checkReports(it) } } +
        readVectors(directory, "caps").map { Case("cap: ${it["epsilon"]}", 0) { checkEqual(parseEpsilon(it["epsilon"] as String).toString(), it["epsilon_nano"]) } } +
        (readVectors(directory, "devices") + readVectors(directory, "refusals")).map { Case("device: ${it["name"]}", 0) { checkCalls(it) } } +
        readVectors(directory, "answers").map { Case("answer: ${it["name"]}", 0) { checkAnswer(it, readFirstCall(directory)) } }

fun checkReports(vector: Map<*, *>) {
    val spec = readRoundSpec(vector["spec"])
    checkEqual(spec.mechanism.epsilonNano().toString(), vector["epsilon_nano"])
    checkEqual(spec.mechanism.valueBytes.toString(), (vector["value_bytes"] as JsonNumber).text)
    for (each in vector["reports"] as List<*>) {
        val expected = each as Map<*, *>
        val entropy = ReplayEntropy(expected["entropy"] as String)
        val perturbed = perturb(spec, readRecord(expected["record"]), entropy)
        checkEqual(Pair(perturbed.slot.toString(), encodeHex(perturbed.value)), Pair((expected["slot"] as JsonNumber).text, expected["value"]))
        checkEqual(entropy.nLeft, 0)
    }
}

fun readRecord(value: Any?): PersonRecord = when (value) {
    is List<*> -> OrderedRecord(*value.map { toDouble(it) }.toDoubleArray())
    is Map<*, *> -> NamedRecord(value.entries.associate { (name, each) -> (name as String) to toDouble(each) })
    else -> throw CheckFailed("the record is neither a list nor an object")
}

private fun toDouble(value: Any?): Double = (value as JsonNumber).text.toDouble()

fun checkCalls(vector: Map<*, *>) {
    val store = MemoryStore()
    for (each in vector["calls"] as List<*>) {
        val call = each as Map<*, *>
        val service = ScriptedService(call["open"])
        val entropy = ReplayEntropy(call["entropy"] as String)
        val device = device(service, store, entropy, vector["cap"] as String, acceptKeptReports = vector["accept_kept_reports"] as Boolean)
        val expectedError = call["error"] as String?
        val error = try {
            val receipt = device.report(readRecord(call["record"]))
            checkEqual(receipt.outcome.name.lowercase(), call["outcome"])
            checkEqual(receipt.rounds.map { listOf(it.roundId, it.outcome.name.lowercase(), it.error?.code, it.outside) }, readOutcomes(call["rounds"]))
            null
        } catch (exception: SfumatoException) {
            exception.code
        }
        checkEqual(error, expectedError)
        checkEqual(service.sent.map { (id, body) -> Pair(id, readJson(body)) }, readSent(call["sent"]))
        checkEqual(entropy.nLeft, 0)
    }
}

fun readFirstCall(directory: File): Map<*, *> = (readVectors(directory, "devices").first()["calls"] as List<*>).first() as Map<*, *>

fun checkAnswer(vector: Map<*, *>, call: Map<*, *>) {
    val status = (vector["status"] as JsonNumber).text.toInt()
    val answer = Response(status, mapOf("content-type" to vector["content_type"] as String), (vector["body"] as String).toByteArray())
    val service = ScriptedService(call["open"]).apply { replies.add { answer } }
    val store = MemoryStore()
    val device = device(service, store, SystemEntropy(), "2")
    val isFinal = try {
        device.report(readRecord(call["record"]))
        true
    } catch (_: ApiProblem) {
        false
    }
    val state = store.read("ds_1").memos.getValue("rnd_1").state.name.lowercase()
    checkEqual(state, vector["state"])
    checkEqual(isFinal, state == "acknowledged" || state == "closed")
    val again = device.report(readRecord(call["record"])).outcome
    checkEqual(Pair(again, service.sent.size), if (state == "pending") Pair(Outcome.SENT, 2) else Pair(Outcome.ALREADY_ANSWERED, 1))
    checkEqual(service.sent.toSet().size, 1)
    checkEqual(device.spent, 1.0)
}

private fun readOutcomes(rounds: Any?): List<List<Any?>> = (rounds as List<*>).map { it as Map<*, *> }.map { listOf(it["id"], it["outcome"], it["error"], it["outside"]) }

private fun readSent(reports: Any?): List<Pair<Any?, Any?>> = (reports as List<*>).map { it as Map<*, *> }.map { Pair(it["id"], readJson(it["body"] as String)) }

/** Return cases with changed vectors, which must all fail. They show that the checks can find an error. */
fun createFalseCases(directory: File): List<Case> {
    val report = readVectors(directory, "reports").first()
    val changedReports = (report["reports"] as List<*>).map { (it as Map<*, *>) + ("value" to "ff") }
    val device = readVectors(directory, "devices").first()
    val call = readFirstCall(directory)
    val keeping = ((call["open"] as Map<*, *>)["rounds"] as List<*>).map { (it as Map<*, *>) + ("keep_reports" to true) }
    val answer = readVectors(directory, "answers").first()
    return listOf(
        Case("another state", 0) { checkAnswer(answer + ("state" to "pending"), call) },
        Case("another value", 1) { checkReports(report + ("reports" to changedReports)) },
        Case("another cost", 1) { checkReports(report + ("epsilon_nano" to "1")) },
        Case("another outcome", 0) { checkCalls(device + ("calls" to listOf(call + ("outcome" to "too_late")))) },
        Case("an unused word", 0) { checkCalls(device + ("calls" to listOf(call + ("entropy" to call["entropy"].toString() + "0".repeat(16))))) },
        Case("kept reports", 0) { checkCalls(device + ("calls" to listOf(call + ("open" to mapOf("rounds" to keeping))))) },
        Case("other bytes sent", 0) { checkCalls(device + ("calls" to listOf(call + ("sent" to emptyList<Any>())))) },
    )
}

/** Run the cases. Return a message for each failed case. */
fun findFailures(cases: List<Case>): List<String> = cases.mapNotNull { case ->
    try {
        case.run()
        null
    } catch (error: Exception) {
        "${case.name}: $error"
    }
}

fun main(arguments: Array<String>) {
    val directory = File(arguments[0])
    val vectors = createVectorCases(directory)
    val nPassed = createFalseCases(directory).let { all -> all.size - findFailures(all).size }
    val behaviours = createBehaviourCases()
    val failed = findFailures(vectors) + findFailures(behaviours) + List(nPassed) { "a changed vector passes" }
    failed.forEach(::println)
    println("${vectors.size} vectors with ${vectors.sumOf { it.nReports }} reports, ${behaviours.size} behaviours: ${if (failed.isEmpty()) "all pass" else "${failed.size} fail"}")
    if (failed.isNotEmpty() || vectors.size < 200 || vectors.sumOf { it.nReports } < 270) kotlin.system.exitProcess(1)
}
