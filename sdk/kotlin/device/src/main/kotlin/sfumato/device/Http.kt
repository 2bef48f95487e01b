/**
 * HTTP requests with a bearer key, retries, and a size limit for responses.
 *
 * A request is retried with the same bytes after a connection error, a timeout, and the statuses 408, 429, 500, 502, 503
 * and 504. Retries end after `retrySeconds`. `Retry-After` is obeyed if it ends before that.
 */
package sfumato.device

import java.io.IOException

private val RETRY_STATUSES = setOf(408, 429, 500, 502, 503, 504)
private const val MIN_PAUSE_SECONDS = 0.1
private const val MAX_PAUSE_SECONDS = 5.0
internal const val MAX_RESPONSE_BYTES = 1 shl 20
private const val USER_AGENT = "sfumato" // the default of Android names the model of the phone
private const val PROBLEM_MEDIA_TYPE = "application/problem+json"
private const val PROBLEM_TYPE = "urn:sfumato:problem:" // the type of a problem is this and its code

/** Title of the problem for an answer that another program than the service wrote. */
internal const val FOREIGN = "the answer is not from the service"
private val SCHEME = Regex("^https?://[^/]", RegexOption.IGNORE_CASE)
private val ADDRESS = Regex("^https?://(\\[[0-9a-f:.]+]|[^/:\\[\\]\\\\]+)(?::([0-9]{1,5}))?(?:/|$)", RegexOption.IGNORE_CASE)
private val PORTS = 1..65535
private val VISIBLE = Regex("[!-~]+")
private val SECONDS = Regex("[0-9]{1,9}(\\.[0-9]+)?")

/** An HTTP request. */
public class Request(public val method: String, public val url: String, public val headers: Map<String, String>, public val body: ByteArray?) {
    internal var cancellation: Cancellation? = null

    /** Set what ends the request early if the call is cancelled. Another thread may call `action`. */
    public fun onCancel(action: () -> Unit) {
        cancellation?.stopWith(action)
    }
}

/** An HTTP response. Header names are in lower case. */
public class Response(public val status: Int, public val headers: Map<String, String>, public val body: ByteArray)

/** Sends HTTP requests. */
public fun interface Transport {
    /** Send a request once, without following redirects. Throw IOException if there is no response. */
    public fun send(request: Request): Response
}

/** The clock for pauses between retries. Tests replace it. */
public interface Clock {
    /** Return a time in seconds. Only differences are meaningful. */
    public fun seconds(): Double

    /** Pause the calling thread. */
    public fun sleep(seconds: Double)

    /** Return a random factor in [0.5, 1.5) for the pause, so that devices do not retry at the same time. */
    public fun jitter(): Double
}

internal object SystemClock : Clock {
    override fun seconds(): Double = System.nanoTime() / 1e9

    override fun sleep(seconds: Double) = Thread.sleep((1000 * seconds).toLong())

    override fun jitter(): Double = 0.5 + SystemEntropy().word().shiftRight(11).toDouble() / (1L shl 53)
}

/** Connection to one service with one key. */
internal class Http(
    url: String,
    private val key: String,
    private val retrySeconds: Double,
    private val transport: Transport,
    private val clock: Clock,
) {
    private val root = readUrl(url) + "/v1/"

    init {
        check(VISIBLE.matches(key)) { "key must have visible ASCII characters only: remove spaces and line ends" }
    }

    /**
     * Send a request and retry it after temporary failures.
     *
     * @param body JSON value to send.
     * @param content Bytes to send, made anew for each attempt.
     * @throws ApiProblem The service returned an error at the last attempt, or an error that a retry cannot fix.
     * @throws Unreachable The service did not respond at the last attempt.
     */
    fun request(
        method: String,
        path: String,
        body: Any? = null,
        content: (() -> ByteArray)? = null,
        headers: Map<String, String> = emptyMap(),
        cancellation: Cancellation? = null,
    ): Response {
        val json = body?.let { toCanonicalJson(it).toByteArray() }
        val allHeaders = buildMap {
            put("Authorization", "Bearer $key")
            put("Accept", "application/json")
            put("User-Agent", USER_AGENT)
            if (json != null) put("Content-Type", "application/json")
            if (content != null) put("Content-Type", "application/octet-stream")
            putAll(headers)
        }
        val deadline = clock.seconds() + retrySeconds
        var backoff = MIN_PAUSE_SECONDS
        while (true) {
            var retryAfter: Double? = null
            val request = Request(method, root + path, allHeaders, content?.invoke() ?: json)
            val failure: SfumatoException = try {
                val response = send(request, cancellation)
                if (response.status in 200..299 || response.status == 304) return response
                retryAfter = readRetryAfter(response)
                readProblem(response).also { if (response.status !in RETRY_STATUSES) throw it }
            } catch (error: IOException) {
                Unreachable("no response from $root (${error.javaClass.simpleName})")
            }
            val pause = retryAfter ?: (backoff * clock.jitter())
            if (clock.seconds() + pause > deadline) throw failure
            if (cancellation == null) clock.sleep(pause) else cancellation.pause(pause)
            backoff = minOf(2 * backoff, MAX_PAUSE_SECONDS)
        }
    }

    private fun send(request: Request, cancellation: Cancellation?): Response {
        cancellation?.check()
        request.cancellation = cancellation
        try {
            return transport.send(request)
        } catch (error: Exception) { // HttpURLConnection has a NullPointerException if another thread closes it
            cancellation?.check()
            throw error
        } finally {
            cancellation?.stopWith(null)
        }
    }
}

/** Validate the URL of a service. Return it without a slash at its end. */
private fun readUrl(url: String): String {
    check(SCHEME.containsMatchIn(url)) { "url must begin with http:// or https://, for example https://sfumato.example" }
    check(url.none { it in "@?#" || it.isWhitespace() }) { "url must have no user name, query, fragment or space" }
    val address = ADDRESS.find(url)
    check(address != null && (address.groupValues[2].ifEmpty { "1" }).toInt() in PORTS) { "url must have a host name or address, and a port up to 65535 if it has one" }
    val root = url.trimEnd('/')
    check(!root.endsWith("/v1")) { "url must be without /v1: pass ${root.removeSuffix("/v1")}" }
    return root
}

/** Return the body of a response as a JSON object. Throw ApiProblem if it is not one. */
internal fun readJsonObject(response: Response): Map<*, *> =
    parseBody(response) as? Map<*, *> ?: throw unexpectedResponse(response.status, "the response is not a JSON object")

private fun parseBody(response: Response): Any? = try {
    readJson(String(response.body, Charsets.UTF_8))
} catch (_: NotJson) {
    null
}

/** Return the problem of an error response. Its code is `unexpected_response` unless the service wrote it. */
private fun readProblem(response: Response): ApiProblem {
    val mediaType = response.headers["content-type"].orEmpty().substringBefore(';').trim().lowercase()
    val document = parseBody(response).takeIf { mediaType == PROBLEM_MEDIA_TYPE } as? Map<*, *>
    val code = document?.get("code") as? String
    val status = (document?.get("status") as? JsonNumber)?.text
    if (code == null || document["type"] != PROBLEM_TYPE + code || status != response.status.toString()) {
        if (response.status == 401 && response.body.isEmpty()) return ApiProblem(401, "unauthenticated", "the key is not valid") // see UrlTransport
        return unexpectedResponse(response.status, FOREIGN)
    }
    return ApiProblem(response.status, code, (document["detail"] ?: document["title"]).toString())
}

/** Return the problem for a response that does not follow the OpenAPI document. Another program may have answered. */
internal fun unexpectedResponse(status: Int, title: String): ApiProblem =
    ApiProblem(status, "unexpected_response", "$title: check the URL, and the network and the proxies on the way to the service")

/** Return the `Retry-After` header in seconds. A date is ignored, because the clocks of device and service can differ. */
internal fun readRetryAfter(response: Response): Double? = response.headers["retry-after"]?.takeIf(SECONDS::matches)?.toDouble()
