/** What no vector shows: memory before sending, one answer a round, the same bytes again, a service that misbehaves. */
package sfumato.device

import com.sun.net.httpserver.HttpServer
import java.io.File
import java.io.IOException
import java.net.InetAddress
import java.net.InetSocketAddress
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions
import kotlin.concurrent.thread

private const val SPEC =
    """{"version":1,"features":[{"name":"x","lower":0,"upper":1}],"encoding":{"type":"grid","cells":[4]},
    "mechanism":{"type":"grr","n_symbols":4,"keep_threshold":"9223372036854775808"},"draw":{"lo":"0","hi":"18446744073709551616"}}"""
private const val OPEN = """{"rounds":[{"id":"rnd_1","collection_id":"rnd_1","index":0,"epsilon":1.2,"spec":$SPEC}]}"""
private val RECORD = InOrder(0.6)

fun behaviours(): List<Case> = listOf(
    Case("memory is on disk before the report is sent", 0) { memoryFirst() },
    Case("an answer that was lost is asked for with the same bytes", 0) { sameBytes() },
    Case("what is pending outlives the process", 0) { pendingOutlives() },
    Case("Retry-After is honoured, and not beyond the time there is", 0) { retryAfter() },
    Case("what would fail again is not tried again", 0) { notAgain() },
    Case("two devices over one file answer a round once", 0) { once() },
    Case("a damaged memory answers nothing", 0) { damaged() },
    Case("a round that closed was charged all the same", 0) { tooLate() },
    Case("other features than the app's are refused", 0) { otherFeatures() },
    Case("no message quotes a value", 0) { noValue() },
    Case("what is not JSON is refused", 0) { notJson() },
    Case("an answer without end, a redirect, a key: over a socket", 0) { overSocket() },
    Case("fresh words differ", 0) { same(List(1000) { SystemEntropy().word() }.toSet().size, 1000) },
)

private fun <T> inDirectory(work: (File) -> T): T {
    val directory = Files.createTempDirectory("sfumato").toFile()
    try {
        return work(directory)
    } finally {
        directory.deleteRecursively()
    }
}

private fun service(vararg replies: () -> Response) = Scripted(readJson(OPEN)).apply { this.replies.addAll(replies) }

private fun problem(status: Int, code: String, retryAfter: String? = null): () -> Response = {
    Response(status, if (retryAfter == null) emptyMap() else mapOf("retry-after" to retryAfter), """{"code":"$code","title":"t"}""".toByteArray())
}

private val lost: () -> Response = { throw IOException("lost") }

private inline fun <reified E : SfumatoException> refused(work: () -> Unit): E {
    try {
        work()
    } catch (error: SfumatoException) {
        return error as? E ?: throw Different("$error is no ${E::class.simpleName}")
    }
    throw Different("nothing was thrown")
}

private fun memoryFirst() = inDirectory { directory ->
    val file = File(directory, "own/device.json")
    val service = service({
        same(FileStore(file).read("ds_1").memos.getValue("rnd_1").state, MemoState.PENDING)
        Response(202, emptyMap(), ByteArray(0))
    })
    device(service, FileStore(file), SystemEntropy(), "2").report(RECORD)
    same(FileStore(file).read("ds_1").memos.getValue("rnd_1").state, MemoState.ACKNOWLEDGED)
    same(FileStore(file).read("ds_1").memos.getValue("rnd_1").value, null)
    same(PosixFilePermissions.toString(Files.getPosixFilePermissions(file.toPath())), "rw-------")
    same(FileStore(file).read("ds_2").memos.size, 0)
}

private fun sameBytes() {
    val service = service(lost, problem(503, "unavailable"), lost)
    val patience = Instant()
    same(device(service, MemoryStore(), SystemEntropy(), "2", 30.0, patience).report(RECORD).outcome, Outcome.SENT)
    same(Pair(service.sent.size, service.sent.toSet().size), Pair(4, 1))
    same(patience.slept, listOf(0.1, 0.2, 0.4))
}

private fun pendingOutlives() = inDirectory { directory ->
    val file = File(directory, "device.json")
    val first = service(lost)
    refused<Unreachable> { device(first, FileStore(file), SystemEntropy(), "2").report(RECORD) }
    val second = service()
    val device = device(second, FileStore(file), SystemEntropy(), "2")
    same(device.pending(), listOf("rnd_1"))
    same(device.report(InOrder(0.1)).outcome, Outcome.SENT)
    same(second.sent, first.sent)
    same(device.pending(), emptyList<String>())
    same(device.flush().size, 0)
    same(device.report(InOrder(0.1)).outcome, Outcome.ALREADY_ANSWERED)
    same(second.sent.size, 1)
}

private fun retryAfter() {
    val patience = Instant()
    device(service(problem(429, "rate_limited", "7")), MemoryStore(), SystemEntropy(), "2", 30.0, patience).report(RECORD)
    same(patience.slept, listOf(7.0))
    val busy = service(problem(503, "unavailable", "3600"))
    refused<ApiProblem> { device(busy, MemoryStore(), SystemEntropy(), "2", 30.0, Instant()).report(RECORD) }
    same(busy.sent.size, 1)
    val date = Instant()
    device(service(problem(503, "unavailable", "Wed, 21 Oct 2026 07:28:00 GMT")), MemoryStore(), SystemEntropy(), "2", 30.0, date).report(RECORD)
    same(date.slept, listOf(0.1))
}

private fun notAgain() {
    for (status in listOf(400, 401, 404, 409, 422)) {
        val service = service(problem(status, "conflict"))
        same(refused<ApiProblem> { device(service, MemoryStore(), SystemEntropy(), "2", 30.0).report(RECORD) }.status, status)
        same(service.sent.size, 1)
    }
    val patience = Instant()
    val silent = Transport { throw IOException("away") }
    refused<Unreachable> { device(silent, MemoryStore(), SystemEntropy(), "2", 1.0, patience).report(RECORD) }
    same(patience.slept, listOf(0.1, 0.2, 0.4))
}

private fun once() = inDirectory { directory ->
    val file = File(directory, "device.json")
    val services = List(8) { service() }
    services.map { each -> thread { device(each, FileStore(file), SystemEntropy(), "2").report(RECORD) } }.forEach { it.join() }
    same(services.flatMap { it.sent }.toSet().size, 1) // some send it again, before it is acknowledged
    same(FileStore(file).read("ds_1").memos.size, 1)
}

private fun damaged() = inDirectory { directory ->
    val file = File(directory, "device.json")
    device(service(), FileStore(file), SystemEntropy(), "2").report(RECORD)
    val whole = file.readText()
    for (text in listOf("", "{", "[]", "null", whole.dropLast(1), whole.replace("acknowledged", "refused"), whole.replace("\"version\":1", "\"version\":2"))) {
        file.writeText(text)
        val service = service()
        refused<StoreUnusable> { device(service, FileStore(file), SystemEntropy(), "2").report(RECORD) }
        same(service.sent.size, 0)
        same(file.readText(), text)
    }
    val within = File(file, "below/device.json") // below a file, so there is no such place
    refused<StoreUnusable> { device(service(), FileStore(within), SystemEntropy(), "2").report(RECORD) }
}

private fun tooLate() {
    val store = MemoryStore()
    val device = device(service(problem(409, "round_closed")), store, SystemEntropy(), "2")
    val receipt = device.report(RECORD)
    same(receipt.outcome, Outcome.TOO_LATE)
    same(receipt.rounds.single().epsilon > 1, true)
    same(device.spent, receipt.rounds.single().epsilon)
    val full = device(service(problem(403, "forbidden")), MemoryStore(), SystemEntropy(), "2")
    refused<ApiProblem> { full.report(RECORD) }
    same(full.pending(), listOf("rnd_1")) // another key may be allowed to
}

private fun otherFeatures() {
    val asked = { features: List<Feature> ->
        Device("http://service.example", "sfk_device", "ds_1", "2", MemoryStore(), features, retrySeconds = 0.0, transport = service())
    }
    same(asked(listOf(Feature("x", 0.0, 1.0))).report(RECORD).outcome, Outcome.SENT)
    refused<RoundRefused> { asked(listOf(Feature("x", 0.0, 2.0))).report(RECORD) }
    refused<InvalidSpec> { Device("http://service.example", "sfk", "ds/1", "2", MemoryStore()) }
    for (cap in listOf("", "x", "0", "-1", "33", "1e-7", "0.0000000001", "NaN", "1e9999")) {
        refused<InvalidSpec> { Device("http://service.example", "sfk", "ds_1", cap, MemoryStore()) }
    }
}

private fun noValue() {
    for (value in listOf(Double.NaN, Double.POSITIVE_INFINITY)) {
        val error = refused<InvalidPoint> { device(service(), MemoryStore(), SystemEntropy(), "2").report(InOrder(value)) }
        same(error.message, "x is not finite")
    }
    val error = refused<InvalidPoint> { device(service(), MemoryStore(), SystemEntropy(), "2").report(InOrder(0.123, 0.456)) }
    same("0.123" in error.message!!, false)
}

private fun notJson() {
    val wrong = listOf("", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "01", "1.", "+1", "NaN", "'a'", "\"\\x\"", "\"\\u12g4\"", "\"a", "[1] 2", "tru", "\"\t\"", "[".repeat(1000))
    for (text in wrong) {
        try {
            readJson(text)
        } catch (_: NotJson) {
            continue
        }
        throw Different("$text was read")
    }
    val text = "{\"a\":[1.5,-2e3,true,null,\"\\u00e9\\n\\\"\"],\"b\":{}}"
    same(readJson(canonical(readJson(text))), readJson(text))
}

/** `java.net` against a real server of this machine. */
private fun overSocket() {
    val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0)
    val keys = ArrayList<String?>()
    server.createContext("/v1/datasets/ds_1/round") { exchange ->
        keys.add(exchange.requestHeaders.getFirst("Authorization"))
        exchange.responseHeaders["ETag"] = "\"1\""
        exchange.sendResponseHeaders(200, OPEN.length.toLong())
        exchange.responseBody.use { it.write(OPEN.toByteArray()) }
    }
    var report = 0
    server.createContext("/v1/rounds/rnd_1/reports") { exchange ->
        report += 1
        exchange.requestBody.readAllBytes()
        if (report == 1) exchange.responseHeaders["Location"] = "/elsewhere"
        exchange.sendResponseHeaders(if (report == 1) 307 else 202, -1)
        exchange.close()
    }
    server.createContext("/v1/datasets/ds_2/round") { exchange ->
        exchange.sendResponseHeaders(200, 0)
        try {
            exchange.responseBody.use { body -> repeat(64) { body.write(ByteArray(1 shl 16)) } }
        } catch (_: IOException) { // it was cut off
        }
    }
    server.start()
    try {
        val url = "http://127.0.0.1:${server.address.port}/"
        val store = MemoryStore()
        val device = { id: String -> Device(url, "sfk_device", id, "2", store, retrySeconds = 0.0) }
        same(refused<ApiProblem> { device("ds_1").report(RECORD) }.status, 307)
        same(device("ds_1").report(RECORD).outcome, Outcome.SENT)
        same(keys.toSet(), setOf<String?>("Bearer sfk_device"))
        same(refused<ApiProblem> { device("ds_2").report(RECORD) }.code, "unexpected_answer")
    } finally {
        server.stop(0)
    }
    refused<Unreachable> { Device("http://127.0.0.1:${server.address.port}", "k", "ds_1", "2", MemoryStore(), retrySeconds = 0.0).report(RECORD) }
}
