/** Tests of suspending calls: what a cancellation ends, and what it never loses. */
package sfumato.device

import com.sun.net.httpserver.HttpServer
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.joinAll
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import java.io.IOException
import java.net.InetAddress
import java.net.InetSocketAddress
import java.nio.file.Files
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import kotlin.random.Random

private const val PROMPT_SECONDS = 20.0 // far below the limits of the held requests, and enough for a busy machine
private const val HELD_SECONDS = 60L

/** A service on a socket that holds the first `nHeld` reports without an answer. */
private class HoldingService(private var nHeld: Int = 0, private val unavailable: Boolean = false) : AutoCloseable {
    val sent = CopyOnWriteArrayList<String>()
    val arrived = CountDownLatch(1)
    private val released = CountDownLatch(1)
    private val threads = Executors.newCachedThreadPool()
    private val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0)
    val url = "http://127.0.0.1:${server.address.port}"

    init {
        server.executor = threads
        server.createContext("/v1/datasets/ds_1/round") { exchange ->
            exchange.sendResponseHeaders(200, OPEN.length.toLong())
            exchange.responseBody.use { it.write(OPEN.toByteArray()) }
        }
        server.createContext("/v1/rounds/rnd_1/reports") { exchange ->
            sent.add(String(exchange.requestBody.readAllBytes()))
            val holds = synchronized(this) { nHeld-- > 0 }
            arrived.countDown()
            if (holds) released.await(HELD_SECONDS, TimeUnit.SECONDS)
            if (unavailable) exchange.responseHeaders["Retry-After"] = "$HELD_SECONDS"
            try {
                exchange.sendResponseHeaders(if (unavailable) 503 else 202, RECEIPT.length.toLong())
                exchange.responseBody.use { it.write(RECEIPT.toByteArray()) }
            } catch (_: IOException) { // the device closed the connection
            }
        }
        server.start()
    }

    fun device(store: Store, transport: Transport = UrlTransport(timeoutSeconds = HELD_SECONDS.toDouble())): Device =
        Device(url, "sfk_device", "ds_1", "2", store, retrySeconds = 2.0 * HELD_SECONDS, transport = transport)

    override fun close() {
        released.countDown()
        server.stop(0)
        threads.shutdownNow()
    }
}

private fun secondsOf(work: () -> Unit): Double = System.nanoTime().let { began ->
    work()
    (System.nanoTime() - began) / 1e9
}

class SuspendingDeviceTest {
    @Test
    fun `calls give the results and errors of the blocking ones`() = HoldingService().use { service ->
        runBlocking {
            val device = service.device(MemoryStore()).suspending()
            checkEqual(device.check(OrderedRecord(1.5)).outside, listOf("x"))
            checkEqual(device.report(RECORD).outcome, Outcome.SENT)
            checkEqual(device.pending(), emptyList<String>())
            checkEqual(device.flush().size, 0)
            assertTrue(device.spent() > 1)
        }
        assertThrows(InvalidPoint::class.java) { runBlocking { service.device(MemoryStore()).suspending().report(OrderedRecord(Double.NaN)) } }
        Unit
    }

    @Test
    fun `a cancelled request ends at once and its report is sent again`() {
        for (transport in listOf(UrlTransport(HELD_SECONDS.toDouble()), OkHttpTransport(timeoutSeconds = HELD_SECONDS.toDouble()))) {
            HoldingService(nHeld = 1).use { service ->
                val device = service.device(MemoryStore(), transport)
                cancelDuring(service) { device.suspending().report(RECORD) }
                checkEqual(device.pending(), listOf("rnd_1"))
                checkEqual(device.report(OrderedRecord(0.1)).outcome, Outcome.SENT)
                checkEqual(Pair(service.sent.size, service.sent.toSet().size), Pair(2, 1))
            }
        }
    }

    @Test
    fun `a cancelled pause ends at once`() = HoldingService(unavailable = true).use { service ->
        val device = service.device(MemoryStore())
        cancelDuring(service) { device.suspending().report(RECORD) }
        checkEqual(device.pending(), listOf("rnd_1"))
    }

    @Test
    fun `a call that waits for another one can be cancelled`() = HoldingService(nHeld = 1).use { service ->
        val device = service.device(MemoryStore()).suspending()
        runBlocking {
            val first = launch(Dispatchers.Default) { device.report(RECORD) }
            service.arrived.await()
            val second = launch(Dispatchers.Default) { device.report(RECORD) }
            delay(100)
            assertTrue(secondsOf { runBlocking { second.cancelAndJoin() } } < PROMPT_SECONDS)
            first.cancelAndJoin()
        }
    }

    @Test
    fun `cancellations at random times never lose or repeat a decision`() {
        val directory = Files.createTempDirectory("sfumato").toFile()
        try {
            HoldingService().use { service ->
                runBlocking {
                    repeat(20) { number ->
                        val store = FileStore(directory.resolve("$number.json"))
                        val device = service.device(store).suspending()
                        val call = launch(Dispatchers.Default) { device.report(RECORD) }
                        delay(Random.nextLong(30))
                        call.cancelAndJoin()
                        val before = store.read("ds_1").memos["rnd_1"]
                        device.report(RECORD)
                        val after = store.read("ds_1").memos.getValue("rnd_1")
                        if (before != null) checkEqual(after.reportId, before.reportId)
                        checkEqual(Pair(after.state, service.sent.toSet().size), Pair(MemoState.ACKNOWLEDGED, number + 1))
                    }
                }
            }
        } finally {
            directory.deleteRecursively()
        }
    }

    @Test
    fun `concurrent calls send one report`() = HoldingService().use { service ->
        val device = service.device(MemoryStore()).suspending()
        runBlocking { List(5) { launch(Dispatchers.Default) { device.report(RECORD) } }.joinAll() }
        checkEqual(service.sent.size, 1)
    }

    private fun cancelDuring(service: HoldingService, work: suspend () -> Unit) {
        val seconds = secondsOf {
            runBlocking {
                val call = async(Dispatchers.Default) { work() }
                service.arrived.await()
                delay(50)
                call.cancelAndJoin()
                assertThrows(CancellationException::class.java) { runBlocking { call.await() } }
            }
        }
        assertTrue(seconds < PROMPT_SECONDS, "$seconds s")
    }
}
