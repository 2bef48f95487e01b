/**
 * The one place that speaks HTTP: bearer key, problems, bounded retries, bounded answers.
 *
 * A request is tried again after a broken connection, a timeout, 408, 429 and 5xx, with the same bytes,
 * until `retrySeconds` have passed; `Retry-After` is honoured where it ends before that.
 */
package sfumato.device

import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.HttpURLConnection
import java.net.URL

private val TRY_AGAIN = setOf(408, 429, 500, 502, 503, 504)
private const val WAIT_FIRST_SECONDS = 0.1
private const val WAIT_MOST_SECONDS = 5.0
private const val MAX_ANSWER_BYTES = 1 shl 20
private val SECONDS = Regex("[0-9]{1,9}(\\.[0-9]+)?")

/** A request; `body` is JSON. */
public class Request(public val method: String, public val url: String, public val headers: Map<String, String>, public val body: ByteArray?)

/** An answer; the names of its headers in lower case. */
public class Response(public val status: Int, public val headers: Map<String, String>, public val body: ByteArray)

/** How a request is sent, once: follows no redirect, and throws IOException where there is no answer. */
public fun interface Transport {
    public fun send(request: Request): Response
}

/** `java.net.HttpURLConnection`, which the JVM and Android have. */
public class UrlTransport(private val timeoutSeconds: Double = 10.0) : Transport {
    override fun send(request: Request): Response {
        val connection = URL(request.url).openConnection() as HttpURLConnection
        try {
            connection.requestMethod = request.method
            connection.instanceFollowRedirects = false // the key and the reports are for this service alone
            connection.useCaches = false
            connection.connectTimeout = (1000 * timeoutSeconds).toInt()
            connection.readTimeout = (1000 * timeoutSeconds).toInt()
            for ((name, value) in request.headers) connection.setRequestProperty(name, value)
            request.body?.let { body ->
                connection.doOutput = true
                connection.setFixedLengthStreamingMode(body.size) // which also keeps it from sending a second time by itself
                connection.outputStream.use { it.write(body) }
            }
            val status = connection.responseCode
            val stream = if (status < 400) connection.inputStream else connection.errorStream
            val headers = connection.headerFields.entries.mapNotNull { (name, values) -> name?.let { it.lowercase() to values.last() } }
            return Response(status, headers.toMap(), stream?.use(::bounded) ?: ByteArray(0))
        } finally {
            connection.disconnect()
        }
    }

    private fun bounded(stream: InputStream): ByteArray {
        val read = ByteArrayOutputStream()
        val chunk = ByteArray(1 shl 14)
        while (true) {
            val n = stream.read(chunk)
            if (n < 0) return read.toByteArray()
            read.write(chunk, 0, n)
            if (read.size() > MAX_ANSWER_BYTES) throw ApiProblem(0, "unexpected_answer", "the answer is over $MAX_ANSWER_BYTES bytes long")
        }
    }
}

/** What passes while a request waits to be tried again; tests have one of their own. */
public interface Patience {
    /** Seconds, of which the differences count. */
    public fun seconds(): Double

    public fun sleep(seconds: Double)

    /** A number in [0.5, 1.5) that spreads attempts out; it decides nothing private. */
    public fun spread(): Double
}

internal object SystemPatience : Patience {
    override fun seconds(): Double = System.nanoTime() / 1e9

    override fun sleep(seconds: Double) = Thread.sleep((1000 * seconds).toLong())

    override fun spread(): Double = 0.5 + SystemEntropy().word().shiftRight(11).toDouble() / (1L shl 53)
}

/** One service, one key. */
internal class Http(
    url: String,
    private val key: String,
    private val retrySeconds: Double,
    private val transport: Transport,
    private val patience: Patience,
) {
    private val root = url.trimEnd('/') + "/v1/"

    /** Send a request, again where it may help; throws ApiProblem or Unreachable. */
    fun request(method: String, path: String, body: Any? = null, headers: Map<String, String> = emptyMap()): Response {
        val bytes = body?.let { canonical(it).toByteArray() }
        val sent = buildMap {
            put("Authorization", "Bearer $key")
            put("Accept", "application/json")
            if (bytes != null) put("Content-Type", "application/json")
            putAll(headers)
        }
        val request = Request(method, root + path, sent, bytes)
        val deadline = patience.seconds() + retrySeconds
        var wait = WAIT_FIRST_SECONDS
        while (true) {
            var wanted: Double? = null
            val failure: SfumatoException = try {
                val response = transport.send(request)
                if (response.status in 200..299 || response.status == 304) return response
                wanted = retryAfterSeconds(response)
                problem(response).also { if (response.status !in TRY_AGAIN) throw it }
            } catch (error: IOException) {
                Unreachable("no answer from $root (${error.javaClass.simpleName})")
            }
            val pause = wanted ?: (wait * patience.spread())
            if (patience.seconds() + pause > deadline) throw failure
            patience.sleep(pause)
            wait = minOf(2 * wait, WAIT_MOST_SECONDS)
        }
    }
}

/** The JSON object of an answer; throws ApiProblem where it is none. */
internal fun objectOf(response: Response): Map<*, *> =
    parsed(response) as? Map<*, *> ?: throw ApiProblem(response.status, "unexpected_answer", "the answer is not a JSON object")

private fun parsed(response: Response): Any? = try {
    readJson(String(response.body, Charsets.UTF_8))
} catch (_: NotJson) {
    null
}

private fun problem(response: Response): ApiProblem {
    val document = parsed(response) as? Map<*, *>
    val code = document?.get("code") as? String ?: return ApiProblem(response.status, "unexpected_answer", "an error without a problem document")
    return ApiProblem(response.status, code, (document["detail"] ?: document["title"]).toString())
}

/** What the `Retry-After` header says in seconds; a date is not read, since clocks differ. */
internal fun retryAfterSeconds(response: Response): Double? = response.headers["retry-after"]?.takeIf(SECONDS::matches)?.toDouble()
