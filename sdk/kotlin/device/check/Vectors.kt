/** The published vectors, run against this device: to the byte, and as many words drawn. */
package sfumato.device

import java.io.File
import java.math.BigInteger

class Different(message: String) : Exception(message)

fun same(got: Any?, wanted: Any?) {
    if (got != wanted) throw Different("$got is not $wanted")
}

/** The given words, each once, in order: eight little-endian bytes a word, in hex. */
class Replay(hexWords: String) : Entropy {
    private val words = ArrayDeque(
        hexWords.chunked(16).map { text -> BigInteger(1, text.chunked(2).reversed().map { it.toInt(16).toByte() }.toByteArray()) },
    )

    val nLeft: Int get() = words.size

    override fun word(): BigInteger = words.removeFirstOrNull() ?: throw Different("more words were asked for than there are")
}

/** A service that plays a script: what is open, and every report it got; `replies` are played to reports first. */
class Scripted(private val open: Any?) : Transport {
    val sent = ArrayList<Pair<String, String>>()
    val asked = ArrayList<Request>()
    val replies = ArrayDeque<() -> Response>()

    override fun send(request: Request): Response {
        asked.add(request)
        if (request.method == "GET") return Response(200, mapOf("etag" to "\"1\"", "retry-after" to "17"), canonical(open).toByteArray())
        sent.add(Pair(request.url.split("/").let { it[it.size - 2] }, String(request.body!!)))
        return (replies.removeFirstOrNull() ?: { Response(202, emptyMap(), "{\"accepted\":1}".toByteArray()) })()
    }
}

/** Time that passes as it is slept. */
class Instant : Patience {
    private var now = 0.0
    val slept = ArrayList<Double>()

    override fun seconds(): Double = now

    override fun sleep(seconds: Double) {
        slept.add(seconds)
        now += seconds
    }

    override fun spread(): Double = 1.0
}

fun device(service: Transport, store: Store, entropy: Entropy, cap: String, retrySeconds: Double = 0.0, patience: Patience = Instant()): Device =
    Device("http://service.example", "sfk_device", "ds_1", cap, store, null, entropy, retrySeconds, service, patience)

/** A case: what it is called, how many reports it compares, and how it runs. */
class Case(val name: String, val nReports: Int, val run: () -> Unit)

fun vectors(directory: File, name: String): List<Map<*, *>> {
    val document = readJson(File(directory, "$name.json").readText()) as Map<*, *>
    return (document[name] as List<*>).map { it as Map<*, *> }
}

fun cases(directory: File): List<Case> =
    vectors(directory, "reports").map { Case("reports: ${it["name"]}", (it["reports"] as List<*>).size) { reports(it) } } +
        vectors(directory, "caps").map { Case("cap: ${it["epsilon"]}", 0) { same(parseEpsilon(it["epsilon"] as String).toString(), it["epsilon_nano"]) } } +
        (vectors(directory, "devices") + vectors(directory, "refusals")).map { Case("device: ${it["name"]}", 0) { calls(it) } }

fun reports(vector: Map<*, *>) {
    val spec = readRoundSpec(vector["spec"])
    same(spec.mechanism.epsilonNano().toString(), vector["epsilon_nano"])
    same(spec.mechanism.valueBytes.toString(), (vector["value_bytes"] as JsonNumber).text)
    for (each in vector["reports"] as List<*>) {
        val told = each as Map<*, *>
        val entropy = Replay(told["entropy"] as String)
        val made = perturb(spec, record(told["record"]), entropy)
        same(Pair(made.slot.toString(), hex(made.value)), Pair((told["slot"] as JsonNumber).text, told["value"]))
        same(entropy.nLeft, 0)
    }
}

fun record(value: Any?): PersonRecord = when (value) {
    is List<*> -> InOrder(*value.map { number(it) }.toDoubleArray())
    is Map<*, *> -> ByName(value.entries.associate { (name, each) -> (name as String) to number(each) })
    else -> throw Different("no record")
}

private fun number(value: Any?): Double = (value as JsonNumber).text.toDouble()

fun calls(vector: Map<*, *>) {
    val store = MemoryStore()
    for (each in vector["calls"] as List<*>) {
        val call = each as Map<*, *>
        val service = Scripted(call["open"])
        val entropy = Replay(call["entropy"] as String)
        val asked = device(service, store, entropy, vector["cap"] as String)
        val wanted = call["error"] as String?
        val error = try {
            val receipt = asked.report(record(call["record"]))
            same(receipt.outcome.name.lowercase(), call["outcome"])
            same(receipt.rounds.map { listOf(it.roundId, it.outcome.name.lowercase(), it.error?.code) }, told(call["rounds"]))
            null
        } catch (refused: SfumatoException) {
            refused.code
        }
        same(error, wanted)
        same(service.sent.map { (id, body) -> Pair(id, readJson(body)) }, sent(call["sent"]))
        same(entropy.nLeft, 0)
    }
}

private fun told(rounds: Any?): List<List<Any?>> = (rounds as List<*>).map { it as Map<*, *> }.map { listOf(it["id"], it["outcome"], it["error"]) }

private fun sent(reports: Any?): List<Pair<Any?, Any?>> = (reports as List<*>).map { it as Map<*, *> }.map { Pair(it["id"], readJson(it["body"] as String)) }

/** A runner that finds nothing wrong finds nothing at all: vectors that were changed must fail. */
fun falsified(directory: File): List<Case> {
    val report = vectors(directory, "reports").first()
    val changedReports = (report["reports"] as List<*>).map { (it as Map<*, *>) + ("value" to "ff") }
    val call = (vectors(directory, "devices").first()["calls"] as List<*>).first() as Map<*, *>
    return listOf(
        Case("another value", 1) { reports(report + ("reports" to changedReports)) },
        Case("another cost", 1) { reports(report + ("epsilon_nano" to "1")) },
        Case("another outcome", 0) { calls(mapOf("cap" to "2", "calls" to listOf(call + ("outcome" to "too_late")))) },
        Case("a word that nobody draws", 0) { calls(mapOf("cap" to "2", "calls" to listOf(call + ("entropy" to call["entropy"].toString() + "0".repeat(16))))) },
        Case("other bytes sent", 0) { calls(mapOf("cap" to "2", "calls" to listOf(call + ("sent" to emptyList<Any>())))) },
    )
}

fun failures(cases: List<Case>): List<String> = cases.mapNotNull { case ->
    try {
        case.run()
        null
    } catch (error: Exception) {
        "${case.name}: $error"
    }
}

fun main(arguments: Array<String>) {
    val directory = File(arguments[0])
    val held = cases(directory)
    val untouched = falsified(directory).let { all -> all.size - failures(all).size }
    val behaviours = behaviours()
    val failed = failures(held) + failures(behaviours) + List(untouched) { "a vector that was changed passes" }
    failed.forEach(::println)
    println("${held.size} vectors with ${held.sumOf { it.nReports }} reports, ${behaviours.size} behaviours: ${if (failed.isEmpty()) "all hold" else "${failed.size} fail"}")
    if (failed.isNotEmpty() || held.size < 140 || held.sumOf { it.nReports } < 350) kotlin.system.exitProcess(1)
}
