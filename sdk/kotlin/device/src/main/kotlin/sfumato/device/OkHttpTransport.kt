/** HTTP over OkHttp. Needs the library `com.squareup.okhttp3:okhttp`, which the app declares. */
package sfumato.device

import okhttp3.MediaType.Companion.toMediaTypeOrNull
import okhttp3.OkHttpClient
import okhttp3.RequestBody.Companion.toRequestBody
import java.util.concurrent.TimeUnit

/**
 * Transport over OkHttp: HTTP/2, the connections of the app, and one limit for the whole exchange.
 *
 * @param client Client of the app. The transport follows no redirects, and uses no cache, no cookies and no retries of it.
 * @param timeoutSeconds Limit for a request with its response.
 */
public class OkHttpTransport(client: OkHttpClient = OkHttpClient(), timeoutSeconds: Double = 10.0) : Transport {
    private val client = client.newBuilder()
        .followRedirects(false)
        .followSslRedirects(false)
        .retryOnConnectionFailure(false)
        .cache(null)
        .cookieJar(okhttp3.CookieJar.NO_COOKIES)
        .callTimeout((1000 * timeoutSeconds).toLong(), TimeUnit.MILLISECONDS)
        .build()

    override fun send(request: Request): Response {
        val built = okhttp3.Request.Builder().url(request.url)
        for ((name, value) in request.headers) built.header(name, value)
        built.method(request.method, request.body?.toRequestBody(request.headers["Content-Type"]?.toMediaTypeOrNull()))
        val call = client.newCall(built.build())
        request.onCancel(call::cancel)
        return call.execute().use { response ->
            val source = response.body.source()
            if (source.request(MAX_RESPONSE_BYTES + 1L)) throw unexpectedResponse(0, "the response is longer than $MAX_RESPONSE_BYTES bytes")
            val headers = response.headers.names().associate { it.lowercase() to response.headers.values(it).last() }
            Response(response.code, headers, source.readByteArray())
        }
    }
}
