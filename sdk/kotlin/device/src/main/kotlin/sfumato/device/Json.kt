/**
 * A JSON reader and writer, so that the device needs no library.
 *
 * The reader returns maps, lists, strings, `JsonNumber`, booleans and null. It rejects invalid JSON and duplicate names.
 * The writer sorts names.
 */
package sfumato.device

/** A number as text, which preserves all its digits. */
internal data class JsonNumber(val text: String)

/** Text that is not valid JSON. */
internal class NotJson : Exception("the text is not valid JSON")

private const val MAX_DEPTH = 64
private val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")
private val ESCAPES = mapOf('"' to '"', '\\' to '\\', '/' to '/', 'b' to '\b', 'f' to '\u000c', 'n' to '\n', 'r' to '\r', 't' to '\t')
private const val DELIMITERS = ",]} \t\r\n"

/** Parse a JSON document. Throw NotJson if it is invalid. */
internal fun readJson(text: String): Any? = JsonReader(text).readDocument()

private class JsonReader(private val text: String) {
    private var at = 0

    fun readDocument(): Any? {
        val value = readValue(0)
        skipBlanks()
        if (at != text.length) throw NotJson()
        return value
    }

    private fun readValue(depth: Int): Any? {
        if (depth > MAX_DEPTH) throw NotJson()
        skipBlanks()
        return when (peek()) {
            '{' -> readObject(depth)
            '[' -> readList(depth)
            '"' -> readString()
            else -> readLiteral()
        }
    }

    private fun readObject(depth: Int): Map<String, Any?> {
        val fields = LinkedHashMap<String, Any?>()
        readSequence('}') {
            val name = readString()
            skipBlanks()
            take(':')
            if (name in fields) throw NotJson()
            fields[name] = readValue(depth + 1)
        }
        return fields
    }

    private fun readList(depth: Int): List<Any?> {
        val items = ArrayList<Any?>()
        readSequence(']') { items.add(readValue(depth + 1)) }
        return items
    }

    /** Read comma-separated items up to the closing bracket. */
    private fun readSequence(end: Char, readItem: () -> Unit) {
        at += 1
        skipBlanks()
        if (peek() == end) {
            at += 1
            return
        }
        while (true) {
            skipBlanks()
            readItem()
            skipBlanks()
            if (peek() == end) {
                at += 1
                return
            }
            take(',')
        }
    }

    private fun readString(): String {
        take('"')
        val content = StringBuilder()
        while (true) {
            val next = peek()
            at += 1
            when {
                next == '"' -> return content.toString()
                next < ' ' -> throw NotJson()
                next == '\\' -> content.append(readEscape())
                else -> content.append(next)
            }
        }
    }

    private fun readEscape(): Char {
        val kind = peek()
        at += 1
        if (kind != 'u') return ESCAPES[kind] ?: throw NotJson()
        val digits = text.substring(at, minOf(at + 4, text.length))
        if (digits.length < 4 || !digits.all { it in '0'..'9' || it in 'a'..'f' || it in 'A'..'F' }) throw NotJson()
        at += 4
        return digits.toInt(16).toChar()
    }

    private fun readLiteral(): Any? {
        val start = at
        while (at < text.length && text[at] !in DELIMITERS) at += 1
        return when (val word = text.substring(start, at)) {
            "true" -> true
            "false" -> false
            "null" -> null
            else -> if (NUMBER.matches(word)) JsonNumber(word) else throw NotJson()
        }
    }

    private fun skipBlanks() {
        while (at < text.length && text[at] in " \t\r\n") at += 1
    }

    private fun peek(): Char = if (at < text.length) text[at] else throw NotJson()

    private fun take(expected: Char) {
        if (peek() != expected) throw NotJson()
        at += 1
    }
}

/** Serialise a value as JSON with sorted keys and no blanks, so that equal values give the same text. */
internal fun toCanonicalJson(value: Any?): String = when (value) {
    null, is Boolean, is Int, is Long -> value.toString()
    is JsonNumber -> value.text
    is String -> quote(value)
    is List<*> -> value.joinToString(",", "[", "]") { toCanonicalJson(it) }
    is Map<*, *> -> value.entries.sortedBy { it.key as String }
        .joinToString(",", "{", "}") { quote(it.key as String) + ":" + toCanonicalJson(it.value) }
    else -> throw IllegalArgumentException("not a JSON value")
}

private fun quote(text: String): String = text.asIterable().joinToString("", "\"", "\"") { each ->
    when {
        each == '"' || each == '\\' -> "\\$each"
        each < ' ' || each.isSurrogate() -> "\\u%04x".format(each.code)
        else -> each.toString()
    }
}
