/** Validation of external input: JSON values as returned by `readJson`. */
package sfumato.device

import java.math.BigInteger

/** Throw InvalidSpec with the message unless the condition holds. */
internal fun check(condition: Boolean, message: () -> String) {
    if (!condition) throw InvalidSpec(message())
}

private val DECIMAL_WORD = Regex("[0-9]{1,20}")
private val WHOLE = Regex("-?[0-9]{1,16}")

/** Return the value as a JSON object. `name` names the field in errors. */
internal fun asObject(value: Any?, name: String): Map<*, *> = value as? Map<*, *> ?: throw InvalidSpec("$name must be an object")

/** Return the value as an integer in least .. most. Both limits are below 2^53. */
internal fun integer(value: Any?, name: String, least: Long, most: Long): Long {
    val text = (value as? JsonNumber)?.text
    val number = if (text != null && WHOLE.matches(text)) text.toLong() else null
    check(number != null && number in least..most) { "$name must be an integer in $least..$most" }
    return number!!
}

/** Return the value as a finite number. */
internal fun finite(value: Any?, name: String): Double {
    val number = (value as? JsonNumber)?.text?.toDouble()
    check(number != null && number.isFinite()) { "$name must be a finite number" }
    return number!!
}

/** Return a 64-bit integer in least .. most, given as a decimal string. */
internal fun decimalWord(value: Any?, name: String, least: BigInteger, most: BigInteger): BigInteger {
    check(value is String && DECIMAL_WORD.matches(value)) { "$name must be a decimal string" }
    val word = BigInteger(value as String)
    check(word in least..most) { "$name must lie in $least..$most" }
    return word
}

/** Return a list of least .. most items, each converted by `read`. */
internal fun <T> list(value: Any?, name: String, least: Int, most: Int, read: (Any?) -> T): List<T> {
    check(value is List<*> && value.size in least..most) { "$name must be a list of $least to $most items" }
    return (value as List<*>).map(read)
}

/** Throw InvalidSpec if a required field is missing or a field is unknown. */
internal fun checkKeys(wire: Map<*, *>, name: String, keys: List<String>, optional: List<String> = emptyList()) {
    val unknown = wire.keys.filter { it !in keys && it !in optional }.map { it as String }
    check(unknown.isEmpty()) { "$name has unknown fields: ${unknown.sorted().joinToString()}" }
    val missing = keys.filter { it !in wire }
    check(missing.isEmpty()) { "$name lacks the fields: ${missing.joinToString()}" }
}

/** Return the number of bytes that a non-negative integer needs, at least one. */
internal fun byteWidth(largest: Long): Int = maxOf(1, (64 - largest.countLeadingZeroBits() + 7) / 8)

/** Encode an integer as little-endian bytes. */
internal fun encodeLittleEndian(value: Long, width: Int): ByteArray = ByteArray(width) { index -> (value ushr (8 * index)).toByte() }

/** Return bytes as hex digits. */
internal fun encodeHex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }
