/** A service and a clock of the tests. */
package sfumato.device

import org.junit.jupiter.api.Assertions.assertEquals

/** Fail unless the values are equal. */
fun checkEqual(actual: Any?, expected: Any?) = assertEquals(expected, actual)

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

fun device(service: Transport, store: Store, entropy: Entropy, cap: String, retrySeconds: Double = 0.0, clock: Clock = FakeClock()): Device =
    Device("http://service.example", "sfk_device", "ds_1", cap, store, null, entropy, retrySeconds, service, clock)
