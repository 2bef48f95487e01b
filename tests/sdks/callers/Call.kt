package sfumato.api.call

import java.util.Base64
import kotlin.reflect.KClass
import kotlin.reflect.KParameter
import kotlin.reflect.full.callSuspendBy
import kotlin.reflect.full.declaredFunctions
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.serializer
import okhttp3.MediaType.Companion.toMediaType
import okhttp3.OkHttpClient
import okhttp3.RequestBody
import okhttp3.RequestBody.Companion.toRequestBody
import okhttp3.ResponseBody
import retrofit2.Response
import sfumato.api.infrastructure.ApiClient
import sfumato.api.infrastructure.Serializer
import sfumato.api.models.Problem

// Calls operations of the generated client by name. Each line of standard input is a JSON request, and each line of
// standard output its result: the status, the content and what the client decoded from it.

private fun argument(parameter: KParameter, given: JsonObject): Any? {
    val json = Serializer.kotlinxSerializationJson
    val value = given.getValue("named").jsonObject[parameter.name]
    if (value != null) {
        return if (value is JsonNull) null else json.decodeFromJsonElement(serializer(parameter.type), value)
    }
    val body = Base64.getDecoder().decode(given.getValue("body").jsonPrimitive.content)
    if (parameter.type.classifier == RequestBody::class) {
        return body.toRequestBody(given.getValue("media_type").jsonPrimitive.content.toMediaType())
    }
    return json.decodeFromString(serializer(parameter.type), body.decodeToString())
}

private fun call(given: JsonObject): JsonObject {
    fun text(name: String) = given.getValue(name).jsonPrimitive.content
    var content = ByteArray(0)
    val builder = OkHttpClient.Builder().addInterceptor { chain ->
        chain.proceed(chain.request()).also { content = it.peekBody(Long.MAX_VALUE).bytes() }
    }
    val client = ApiClient(text("url"), builder, "key", text("key"))
    val api = Class.forName("sfumato.api.apis.${text("api")}Api").kotlin
    val function = api.declaredFunctions.single { it.name == text("operation") }
    val service = create(client, api)
    val arguments = function.parameters.associateWith { parameter ->
        if (parameter.kind == KParameter.Kind.INSTANCE) service else argument(parameter, given)
    }.filterNot { (parameter, value) -> parameter.isOptional && value == null }
    val response = runBlocking { function.callSuspendBy(arguments) } as Response<*>
    val decoded = if (response.isSuccessful) {
        val type = function.returnType.arguments.single().type!!
        val isModel = type.classifier != Unit::class && type.classifier != ResponseBody::class && type.classifier != String::class
        if (isModel && response.body() != null) Serializer.kotlinxSerializationJson.encodeToJsonElement(serializer(type), response.body()) else JsonNull
    } else {
        val problem = response.errorBody()!!.string()
        if (problem.isEmpty()) JsonNull else {
            val json = Serializer.kotlinxSerializationJson
            json.encodeToJsonElement(serializer<Problem>(), json.decodeFromString<Problem>(problem))
        }
    }
    return JsonObject(
        mapOf(
            "status" to JsonPrimitive(response.code()),
            "content" to JsonPrimitive(Base64.getEncoder().encodeToString(content)),
            "decoded" to decoded,
        ),
    )
}

private fun create(client: ApiClient, api: KClass<*>): Any = client.createService(api.java)

fun main() {
    // The service refuses null for an optional member, so an app leaves such members out.
    Serializer.kotlinxSerializationJsonConfiguration = { explicitNulls = false }
    generateSequence(::readLine).forEach { line ->
        val result: JsonElement = try {
            call(Json.parseToJsonElement(line).jsonObject)
        } catch (failure: Exception) {
            JsonObject(mapOf("failure" to JsonPrimitive((failure.cause ?: failure).toString())))
        }
        println(result)
    }
    System.exit(0) // the client's pool of connections keeps threads
}
