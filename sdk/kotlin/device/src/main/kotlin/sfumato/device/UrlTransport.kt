/** HTTP over `java.net.HttpURLConnection`, which the JVM and Android provide. */
package sfumato.device

import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.HttpRetryException
import java.net.HttpURLConnection
import java.net.SocketTimeoutException
import java.net.URL

/**
 * Transport over `java.net.HttpURLConnection`: HTTP/1.1, no redirects, no cache, no retries of its own.
 *
 * @param timeoutSeconds Limit for the connection, for each wait for bytes, and for the response body as a whole.
 */
public class UrlTransport(private val timeoutSeconds: Double = 10.0) : Transport {
    override fun send(request: Request): Response {
        val connection = URL(request.url).openConnection() as HttpURLConnection
        request.onCancel(connection::disconnect)
        try {
            configure(connection, request)
            connection.connect()
            request.cancellation?.check() // a cancellation during `connect` closed nothing
            request.body?.let { body -> connection.outputStream.use { it.write(body) } }
            val response = readResponse(connection)
            request.cancellation?.check() // a cancellation closes the connection, which may end the body early
            return response
        } finally {
            connection.disconnect()
        }
    }

    private fun configure(connection: HttpURLConnection, request: Request) {
        connection.requestMethod = request.method
        connection.instanceFollowRedirects = false // a redirect must not send the key or a report to another server
        connection.useCaches = false
        connection.connectTimeout = (1000 * timeoutSeconds).toInt()
        connection.readTimeout = (1000 * timeoutSeconds).toInt()
        for ((name, value) in request.headers) connection.setRequestProperty(name, value)
        request.body?.let { body ->
            connection.doOutput = true
            connection.setFixedLengthStreamingMode(body.size) // HttpURLConnection would send a request twice without it
        }
    }

    private fun readResponse(connection: HttpURLConnection): Response {
        val status = try {
            connection.responseCode
        } catch (error: HttpRetryException) {
            error.responseCode() // 401: HttpURLConnection wants to send the body again, and drops the response
        }
        if (status < 0) throw IOException("the response is not HTTP")
        val headers = connection.headerFields.entries.mapNotNull { (name, values) -> name?.let { it.lowercase() to values.last() } }
        val stream = if (status < 400) connection.inputStream else connection.errorStream
        return Response(status, headers.toMap(), stream?.use(::readBounded) ?: ByteArray(0))
    }

    /** Read a response body. Throw ApiProblem if it is too long, and IOException if it takes too long. */
    private fun readBounded(stream: InputStream): ByteArray {
        val deadline = System.nanoTime() + (1e9 * timeoutSeconds).toLong()
        val body = ByteArrayOutputStream()
        val chunk = ByteArray(1 shl 14)
        while (true) {
            val n = stream.read(chunk)
            if (n < 0) return body.toByteArray()
            body.write(chunk, 0, n)
            if (body.size() > MAX_RESPONSE_BYTES) throw unexpectedResponse(0, "the response is longer than $MAX_RESPONSE_BYTES bytes")
            if (System.nanoTime() > deadline) throw SocketTimeoutException("the response takes too long")
        }
    }
}
