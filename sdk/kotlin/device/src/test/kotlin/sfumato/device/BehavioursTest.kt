/** Tests of what the conformance kit does not cover: durable memory, one report per round, identical resends, and faulty services. */
package sfumato.device

import com.sun.net.httpserver.HttpServer
import org.junit.jupiter.api.Test
import java.io.File
import java.io.IOException
import java.net.InetAddress
import java.net.InetSocketAddress
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions
import kotlin.concurrent.thread

private const val SPEC =
    """{"version":1,"features":[{"name":"x","lower":0,"upper":1}],"encoding":{"type":"grid","cells":[4]},
    "mechanism":{"type":"grr","n_symbols":4,"keep_threshold":"9223372036854775808"},"participation":{"lo":"0","hi":"18446744073709551616"}}"""
internal const val OPEN = """{"rounds":[{"id":"rnd_1","collection_id":"rnd_1","index":0,"epsilon":1.2,"keep_reports":false,"spec":$SPEC}]}"""
internal const val RECEIPT = """{"round_id":"rnd_1","accepted":1}"""
internal val RECORD = OrderedRecord(0.6)

class BehavioursTest {
    @Test
    fun `the memory is on disk before a report is sent`() {
        checkMemoryFirst()
    }

    @Test
    fun `a report is resent with the same bytes after its response was lost`() {
        checkSameBytes()
    }

    @Test
    fun `a pending report survives the end of the process`() {
        checkPendingSurvives()
    }

    @Test
    fun `Retry-After is obeyed unless it exceeds retrySeconds`() {
        checkRetryAfter()
    }

    @Test
    fun `a permanent error is not retried`() {
        checkNoRetry()
    }

    @Test
    fun `several devices with one file answer a round once`() {
        checkOneReport()
    }

    @Test
    fun `concurrent calls of one device send one report`() {
        checkOneCall()
    }

    @Test
    fun `a store keeps to its file and writes through links`() {
        checkLinks()
    }

    @Test
    fun `a device with a damaged memory sends no report`() {
        checkDamagedMemory()
    }

    @Test
    fun `a report to a closed round counts as spent`() {
        checkTooLate()
    }

    @Test
    fun `a round with unexpected features is refused`() {
        checkUnexpectedFeatures()
    }

    @Test
    fun `a round of places needs the features of the app for every record`() {
        checkPlaces()
    }

    @Test
    fun `a round with another declaration of an attribute is refused for each value`() {
        checkDeclaredAttributes()
    }

    @Test
    fun `check reads the declared attributes without a round about them`() {
        checkAttributesOfRecord()
    }

    @Test
    fun `a position has the values of latitude and longitude by name`() {
        checkPosition()
    }

    @Test
    fun `check validates a record and sends nothing`() {
        checkRecordCheck()
    }

    @Test
    fun `no message contains a value`() {
        checkNoValueInMessages()
    }

    @Test
    fun `invalid JSON is rejected`() {
        checkInvalidJson()
    }

    @Test
    fun `requests over a socket send the key follow no redirect and limit the response`() {
        checkSocket(UrlTransport())
        checkSocket(OkHttpTransport())
    }

    @Test
    fun `random words differ`() {
        checkEqual(List(1000) { SystemEntropy().word() }.toSet().size, 1000)
    }
}

private fun <T> withDirectory(work: (File) -> T): T {
    val directory = Files.createTempDirectory("sfumato").toFile()
    try {
        return work(directory)
    } finally {
        directory.deleteRecursively()
    }
}

private fun createService(vararg replies: () -> Response) = ScriptedService(readJson(OPEN)).apply { this.replies.addAll(replies) }

private fun problem(status: Int, code: String, retryAfter: String? = null): () -> Response = {
    val headers = mapOf("content-type" to "application/problem+json") + if (retryAfter == null) emptyMap() else mapOf("retry-after" to retryAfter)
    Response(status, headers, """{"type":"urn:sfumato:problem:$code","code":"$code","title":"t","status":$status}""".toByteArray())
}

private val loseResponse: () -> Response = { throw IOException("the response was lost") }

/** Return the exception of the work. Fail if it throws another exception or none. */
private inline fun <reified E : SfumatoException> expectThrown(work: () -> Unit): E {
    try {
        work()
    } catch (error: SfumatoException) {
        return error as? E ?: throw AssertionError("$error is not a ${E::class.simpleName}")
    }
    throw AssertionError("no exception was thrown")
}

private fun checkMemoryFirst() = withDirectory { directory ->
    val file = File(directory, "own/device.json")
    val service = createService({
        checkEqual(FileStore(file).read("ds_1").memos.getValue("rnd_1").state, MemoState.PENDING)
        Response(202, emptyMap(), RECEIPT.toByteArray())
    })
    device(service, FileStore(file), SystemEntropy(), "2").report(RECORD)
    checkEqual(FileStore(file).read("ds_1").memos.getValue("rnd_1").state, MemoState.ACKNOWLEDGED)
    checkEqual(FileStore(file).read("ds_1").memos.getValue("rnd_1").value, null)
    checkEqual(PosixFilePermissions.toString(Files.getPosixFilePermissions(file.toPath())), "rw-------")
    checkEqual(FileStore(file).read("ds_2").memos.size, 0)
}

private fun checkSameBytes() {
    val service = createService(loseResponse, problem(503, "unavailable"), loseResponse)
    val clock = FakeClock()
    checkEqual(device(service, MemoryStore(), SystemEntropy(), "2", 30.0, clock).report(RECORD).outcome, Outcome.SENT)
    checkEqual(Pair(service.sent.size, service.sent.toSet().size), Pair(4, 1))
    checkEqual(clock.pauses, listOf(0.1, 0.2, 0.4))
}

private fun checkPendingSurvives() = withDirectory { directory ->
    val file = File(directory, "device.json")
    val first = createService(loseResponse)
    expectThrown<Unreachable> { device(first, FileStore(file), SystemEntropy(), "2").report(RECORD) }
    val second = createService()
    val device = device(second, FileStore(file), SystemEntropy(), "2")
    checkEqual(device.pending(), listOf("rnd_1"))
    checkEqual(device.report(OrderedRecord(0.1)).outcome, Outcome.SENT)
    checkEqual(second.sent, first.sent)
    checkEqual(device.pending(), emptyList<String>())
    checkEqual(device.flush().size, 0)
    checkEqual(device.report(OrderedRecord(0.1)).outcome, Outcome.ALREADY_ANSWERED)
    checkEqual(second.sent.size, 1)
}

private fun checkRetryAfter() {
    val clock = FakeClock()
    device(createService(problem(429, "rate_limited", "7")), MemoryStore(), SystemEntropy(), "2", 30.0, clock).report(RECORD)
    checkEqual(clock.pauses, listOf(7.0))
    val unavailable = createService(problem(503, "unavailable", "3600"))
    expectThrown<ApiProblem> { device(unavailable, MemoryStore(), SystemEntropy(), "2", 30.0, FakeClock()).report(RECORD) }
    checkEqual(unavailable.sent.size, 1)
    val dateClock = FakeClock()
    device(createService(problem(503, "unavailable", "Wed, 21 Oct 2026 07:28:00 GMT")), MemoryStore(), SystemEntropy(), "2", 30.0, dateClock).report(RECORD)
    checkEqual(dateClock.pauses, listOf(0.1))
}

private fun checkNoRetry() {
    for (status in listOf(400, 401, 404, 409, 422)) {
        val service = createService(problem(status, "conflict"))
        checkEqual(expectThrown<ApiProblem> { device(service, MemoryStore(), SystemEntropy(), "2", 30.0).report(RECORD) }.status, status)
        checkEqual(service.sent.size, 1)
    }
    val clock = FakeClock()
    val silent = Transport { throw IOException("no connection") }
    expectThrown<Unreachable> { device(silent, MemoryStore(), SystemEntropy(), "2", 1.0, clock).report(RECORD) }
    checkEqual(clock.pauses, listOf(0.1, 0.2, 0.4))
}

private fun checkOneReport() = withDirectory { directory ->
    val file = File(directory, "device.json")
    val services = List(8) { createService() }
    services.map { each -> thread { device(each, FileStore(file), SystemEntropy(), "2").report(RECORD) } }.forEach { it.join() }
    checkEqual(services.flatMap { it.sent }.toSet().size, 1) // some devices resend the report before it is acknowledged
    checkEqual(FileStore(file).read("ds_1").memos.size, 1)
}

private fun checkOneCall() {
    val service = createService()
    val device = device(service, MemoryStore(), SystemEntropy(), "2")
    List(5) { thread { device.report(RECORD) } }.forEach { it.join() }
    checkEqual(service.sent.size, 1)
    checkEqual(device.report(RECORD).store, null)
}

private fun checkLinks() = withDirectory { directory ->
    val real = directory.toPath().toRealPath()
    val volume = real.resolve("volume/deep/device.json") // does not exist yet
    val link = Files.createSymbolicLink(real.resolve("link.json"), real.relativize(volume))
    Files.createDirectory(real.resolve("volume"))
    Files.createSymbolicLink(real.resolve("folder"), real.resolve("volume"))
    val store = FileStore(link.toFile())
    val service = createService()
    val receipt = device(service, store, SystemEntropy(), "2").report(RECORD)
    checkEqual(Pair(receipt.outcome, receipt.store), Pair(Outcome.SENT, volume.toString()))
    checkEqual(Pair(Files.isSymbolicLink(link), Files.isRegularFile(volume)), Pair(true, true))
    for (name in listOf("link.json", "folder/deep/device.json", "volume/deep/../deep/device.json")) {
        val again = FileStore(real.resolve(name).toFile())
        checkEqual(again.location, volume.toString())
        checkEqual(device(service, again, SystemEntropy(), "2").report(RECORD).outcome, Outcome.ALREADY_ANSWERED)
    }
    Files.delete(link)
    Files.createSymbolicLink(link, real.resolve("other.json"))
    checkEqual(device(service, store, SystemEntropy(), "2").report(RECORD).outcome, Outcome.ALREADY_ANSWERED)
    checkEqual(service.sent.size, 1)
    Files.createSymbolicLink(real.resolve("loop"), real.resolve("loop"))
    expectThrown<StoreUnusable> { FileStore(real.resolve("loop").toFile()) }
    Files.createLink(real.resolve("second.json"), volume)
    expectThrown<StoreUnusable> { device(service, store, SystemEntropy(), "2").flush(); store.change("ds_1") { } }
}

private fun checkDamagedMemory() = withDirectory { directory ->
    val file = File(directory, "device.json")
    device(createService(), FileStore(file), SystemEntropy(), "2").report(RECORD)
    val whole = file.readText()
    for (text in listOf("", "{", "[]", "null", whole.dropLast(1), whole.replace("acknowledged", "refused"), whole.replace("\"version\":1", "\"version\":2"))) {
        file.writeText(text)
        val service = createService()
        expectThrown<StoreUnusable> { device(service, FileStore(file), SystemEntropy(), "2").report(RECORD) }
        checkEqual(service.sent.size, 0)
        checkEqual(file.readText(), text)
    }
    val within = File(file, "below/device.json") // a path below a file cannot exist
    expectThrown<StoreUnusable> { device(createService(), FileStore(within), SystemEntropy(), "2").report(RECORD) }
}

private fun checkTooLate() {
    val store = MemoryStore()
    val device = device(createService(problem(409, "round_closed")), store, SystemEntropy(), "2")
    val receipt = device.report(RECORD)
    checkEqual(receipt.outcome, Outcome.TOO_LATE)
    checkEqual(receipt.rounds.single().epsilon > 1, true)
    checkEqual(device.spent, receipt.rounds.single().epsilon)
    val forbidden = device(createService(problem(403, "forbidden")), MemoryStore(), SystemEntropy(), "2")
    expectThrown<ApiProblem> { forbidden.report(RECORD) }
    checkEqual(forbidden.pending(), listOf("rnd_1")) // a later call with another key can send it
}

private fun checkUnexpectedFeatures() {
    val createDevice = { features: List<Feature> ->
        Device("http://service.example", "sfk_device", "ds_1", "2", MemoryStore(), features, retrySeconds = 0.0, transport = createService())
    }
    checkEqual(createDevice(listOf(Feature("x", 0.0, 1.0))).report(RECORD).outcome, Outcome.SENT)
    val refusals = mapOf(
        listOf(Feature("x", 0.0, 2.0)) to "the bounds, the unit or the shape of x differ",
        listOf(Feature("y", 0.0, 1.0)) to "it lacks y and it also has x",
        listOf(Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0)) to "it lacks y",
    )
    for ((features, difference) in refusals) {
        val error = expectThrown<RoundRefused> { createDevice(features).report(RECORD) }
        checkEqual(error.message!!.substringAfter("expects: "), difference)
    }
    for (url in listOf("", "localhost:8000", "ftp://service.example", "http://", "http://service.example/v1/", "http://a:b@service.example", "http://service.example?x")) {
        expectThrown<InvalidSpec> { Device(url, "sfk", "ds_1", "2", MemoryStore()) }
    }
    for (key in listOf("", "sfk\n", "s k", "sfké")) expectThrown<InvalidSpec> { Device("http://service.example", key, "ds_1", "2", MemoryStore()) }
    expectThrown<InvalidSpec> { Device("http://service.example", "sfk", "ds/1", "2", MemoryStore()) }
    for (cap in listOf("", "x", "0", "-1", "33", "1e-7", "0.0000000001", "NaN", "1e9999")) {
        expectThrown<InvalidSpec> { Device("http://service.example", "sfk", "ds_1", cap, MemoryStore()) }
    }
}

private fun checkPlaces() {
    val place = listOf(
        Feature("latitude", 58.0, 71.2, "degrees", coordinate = "latitude"),
        Feature("longitude", 5.0, 31.2, "degrees", coordinate = "longitude"),
    )
    val wire = place.joinToString { """{"name":"${it.name}","lower":${it.lower},"upper":${it.upper},"unit":"degrees","coordinate":"${it.name}"}""" }
    val open = OPEN.replace("""{"name":"x","lower":0,"upper":1}""", wire).replace("""{"type":"grid","cells":[4]}""", """{"type":"grid","cells":[2,2]}""")
    fun report(features: List<Feature>?, latitude: Double): Receipt {
        val service = ScriptedService(readJson(open))
        val device = Device("http://service.example", "sfk_device", "ds_1", "2", MemoryStore(), features, transport = service)
        return device.report(PositionRecord(latitude, 10.0))
    }
    for (latitude in listOf(60.0, 95.0)) {
        val error = expectThrown<RoundRefused> { report(null, latitude) }
        checkEqual("Declare the features of the app" in error.message!!, true)
    }
    checkEqual(report(place, 60.0).outcome, Outcome.SENT)
    expectThrown<InvalidPoint> { report(place, 95.0) }
}

private fun checkDeclaredAttributes() {
    val plan = """{"kind":"categorical","name":"plan","values":["free","pro"],"use":"cluster","weight":1.0}"""
    val open = OPEN.replace("""{"type":"grid","cells":[4]}""", """{"type":"phase","weights":[[900]],"phases":4,"attributes":[$plan],"characters":[[1]]}""")
    fun report(declared: List<DeclaredAttribute>, value: String?): Receipt {
        val service = ScriptedService(readJson(open))
        val device = Device("http://service.example", "sfk_device", "ds_1", "2", MemoryStore(), transport = service, attributes = declared)
        return device.report(NamedRecord(mapOf("x" to 0.6), mapOf("plan" to value)))
    }
    checkEqual(report(listOf(DeclaredAttribute.categorical("plan", listOf("free", "pro"))), "pro").outcome, Outcome.SENT)
    val others = listOf(
        DeclaredAttribute.categorical("plan", listOf("free", "gold")),
        DeclaredAttribute.categorical("plan", listOf("free", "pro"), unknown = "other"),
        DeclaredAttribute.categorical("plan", listOf("free", "pro"), missing = "category"),
        DeclaredAttribute.numeric("plan", listOf(0.0, 1.0, 2.0)),
    )
    for (declared in others) {
        for (value in listOf("free", "gold", null)) {
            val error = expectThrown<RoundRefused> { report(listOf(declared), value) }
            checkEqual("declares otherwise: plan" in error.message!!, true)
        }
    }
    expectThrown<InvalidSpec> { DeclaredAttribute.categorical("plan", listOf("free", "pro"), unknown = "drop") }
    expectThrown<InvalidSpec> { report(others, "pro") } // one name, twice
}

private fun checkAttributesOfRecord() {
    val attributes = listOf(DeclaredAttribute.categorical("plan", listOf("free", "pro")), DeclaredAttribute.numeric("age", listOf(0.0, 18.0, 120.0)))
    for (features in listOf(null, listOf(Feature("x", 0.0, 1.0)))) {
        val service = createService() // its round has no attributes
        val device = Device("http://service.example", "sfk_device", "ds_1", "2", MemoryStore(), features, transport = service, attributes = attributes)
        checkEqual(device.check(NamedRecord(mapOf("x" to 1.5, "age" to 3.0), mapOf("plan" to "pro"))).outside, listOf("x"))
        for (plan in listOf("gold", null)) expectThrown<InvalidPoint> { device.check(NamedRecord(mapOf("x" to 1.5, "age" to 3.0), mapOf("plan" to plan))) }
        expectThrown<InvalidPoint> { device.check(NamedRecord(mapOf("x" to 1.5), mapOf("plan" to "pro", "age" to "old"))) }
        expectThrown<InvalidPoint> { device.check(NamedRecord(mapOf("x" to 1.5), mapOf("plan" to "pro"))) }
        expectThrown<InvalidPoint> { device.check(OrderedRecord(1.5)) }
        checkEqual(service.sent.size, 0)
    }
}

private fun checkRecordCheck() {
    val service = createService()
    val store = MemoryStore()
    val device = device(service, store, SystemEntropy(), "2")
    checkEqual(device.check(RECORD).outside, emptyList<String>())
    checkEqual(device.check(OrderedRecord(1.5)).outside, listOf("x"))
    expectThrown<InvalidPoint> { device.check(OrderedRecord(Double.NaN)) }
    checkEqual(Pair(service.sent.size, store.read("ds_1").draws.size), Pair(0, 0))
}

private fun checkPosition() {
    fun outside(features: List<Feature>, latitude: Double, longitude: Double) = checkRecord(features, PositionRecord(latitude, longitude)).outside
    fun place(east: Double) = listOf(Feature("Lon", east, east + 20), Feature("latitude", 40.0, 80.0))
    checkEqual(outside(place(0.0), 52.5, 13.4), emptyList<String>())
    checkEqual(outside(place(0.0).reversed(), 52.5, 13.4), emptyList<String>())
    checkEqual(outside(place(0.0), 13.4, 52.5), listOf("Lon", "latitude"))
    for ((east, longitude) in listOf(170.0 to -178.0, 170.0 to 179.0, -190.0 to 178.0, 180.0 to -161.0)) {
        checkEqual(outside(place(east), 60.0, longitude), emptyList<String>())
    }
    checkEqual(outside(place(170.0), 60.0, 0.0), listOf("Lon"))
    val hour = Feature("hour", 0.0, 24.0)
    for (features in listOf(place(0.0) + hour, listOf(place(0.0)[0], hour), listOf(hour))) {
        checkEqual("by feature name" in expectThrown<InvalidPoint> { outside(features, 50.0, 1.0) }.message!!, true)
    }
    expectThrown<InvalidPoint> { outside(place(0.0), Double.NaN, 1.0) }
}

private fun checkNoValueInMessages() {
    for (value in listOf(Double.NaN, Double.POSITIVE_INFINITY)) {
        val error = expectThrown<InvalidPoint> { device(createService(), MemoryStore(), SystemEntropy(), "2").report(OrderedRecord(value)) }
        checkEqual(error.message, "x must be a finite number")
    }
    val error = expectThrown<InvalidPoint> { device(createService(), MemoryStore(), SystemEntropy(), "2").report(OrderedRecord(0.123, 0.456)) }
    checkEqual("0.123" in error.message!!, false)
}

private fun checkInvalidJson() {
    val wrong = listOf("", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "01", "1.", "+1", "NaN", "'a'", "\"\\x\"", "\"\\u12g4\"", "\"a", "[1] 2", "tru", "\"\t\"", "[".repeat(1000))
    for (text in wrong) {
        try {
            readJson(text)
        } catch (_: NotJson) {
            continue
        }
        throw AssertionError("$text was accepted")
    }
    val text = "{\"a\":[1.5,-2e3,true,null,\"\\u00e9\\n\\\"\"],\"b\":{}}"
    checkEqual(readJson(toCanonicalJson(readJson(text))), readJson(text))
}

/** Check a transport against a local server. */
private fun checkSocket(transport: Transport) {
    val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0)
    val keys = ArrayList<String?>()
    server.createContext("/v1/datasets/ds_1/round") { exchange ->
        keys.add(exchange.requestHeaders.getFirst("Authorization"))
        checkEqual(exchange.requestHeaders.getFirst("User-Agent"), "sfumato") // the default names the platform
        exchange.responseHeaders["ETag"] = "\"1\""
        exchange.sendResponseHeaders(200, OPEN.length.toLong())
        exchange.responseBody.use { it.write(OPEN.toByteArray()) }
    }
    var report = 0
    server.createContext("/v1/rounds/rnd_1/reports") { exchange ->
        report += 1
        exchange.requestBody.readAllBytes()
        if (report == 1) exchange.responseHeaders["Location"] = "/elsewhere"
        exchange.sendResponseHeaders(if (report == 1) 307 else 202, RECEIPT.length.toLong())
        exchange.responseBody.use { it.write(RECEIPT.toByteArray()) }
    }
    server.createContext("/v1/datasets/ds_2/round") { exchange ->
        exchange.sendResponseHeaders(200, 0)
        try {
            exchange.responseBody.use { body -> repeat(64) { body.write(ByteArray(1 shl 16)) } }
        } catch (_: IOException) { // the device closed the connection
        }
    }
    server.start()
    try {
        val url = "http://127.0.0.1:${server.address.port}/"
        val store = MemoryStore()
        val device = { id: String -> Device(url, "sfk_device", id, "2", store, retrySeconds = 0.0, transport = transport) }
        checkEqual(expectThrown<ApiProblem> { device("ds_1").report(RECORD) }.status, 307)
        checkEqual(device("ds_1").report(RECORD).outcome, Outcome.SENT)
        checkEqual(keys.toSet(), setOf<String?>("Bearer sfk_device"))
        checkEqual(expectThrown<ApiProblem> { device("ds_2").report(RECORD) }.code, "unexpected_response")
    } finally {
        server.stop(0)
    }
    expectThrown<Unreachable> { Device("http://127.0.0.1:${server.address.port}", "k", "ds_1", "2", MemoryStore(), retrySeconds = 0.0, transport = transport).report(RECORD) }
}
