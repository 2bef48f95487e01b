/** Checks of what comes from outside: JSON as `readJson` gives it. */
package sfumato.device

import java.math.BigInteger

internal fun check(condition: Boolean, message: () -> String) {
    if (!condition) throw InvalidSpec(message())
}

private val DECIMAL_WORD = Regex("[0-9]{1,20}")
private val WHOLE = Regex("-?[0-9]{1,16}")

internal fun asObject(value: Any?, what: String): Map<*, *> = value as? Map<*, *> ?: throw InvalidSpec("$what is an object")

/** An integer in least .. most, both below 2^53. */
internal fun integer(value: Any?, what: String, least: Long, most: Long): Long {
    val text = (value as? JsonNumber)?.text
    val read = if (text != null && WHOLE.matches(text)) text.toLong() else null
    check(read != null && read in least..most) { "$what lies in $least..$most" }
    return read!!
}

internal fun finite(value: Any?, what: String): Double {
    val read = (value as? JsonNumber)?.text?.toDouble()
    check(read != null && read.isFinite()) { "$what must be a finite number" }
    return read!!
}

/** A 64-bit integer, which travels as a decimal string. */
internal fun decimalWord(value: Any?, what: String, least: BigInteger, most: BigInteger): BigInteger {
    check(value is String && DECIMAL_WORD.matches(value)) { "$what is a decimal string" }
    val read = BigInteger(value as String)
    check(read in least..most) { "$what lies in $least..$most" }
    return read
}

/** A list of least .. most items, each read by `read`. */
internal fun <T> items(value: Any?, what: String, least: Int, most: Int, read: (Any?) -> T): List<T> {
    check(value is List<*> && value.size in least..most) { "$what is a list of $least to $most" }
    return (value as List<*>).map(read)
}

/** Refuse what this version does not know, and what lacks. */
internal fun onlyKeys(wire: Map<*, *>, what: String, keys: List<String>, optional: List<String> = emptyList()) {
    check(wire.keys.all { it in keys || it in optional }) { "$what has an unknown field" }
    check(keys.all { it in wire }) { "$what: a field is missing" }
}

/** How many whole bytes a value needs, at least one. */
internal fun bytesOf(largest: Long): Int = maxOf(1, (64 - largest.countLeadingZeroBits() + 7) / 8)

/** A whole number as little-endian bytes. */
internal fun littleEndian(value: Long, width: Int): ByteArray = ByteArray(width) { place -> (value ushr (8 * place)).toByte() }

internal fun hex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }
