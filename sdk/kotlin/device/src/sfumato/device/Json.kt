/**
 * JSON, as little of it as a device needs: read into maps, lists, strings, `JsonNumber`, booleans and null; written with sorted keys.
 *
 * Written here so that the device side needs no library. What is not JSON is refused, and so is a name given twice.
 */
package sfumato.device

/** A number as it was written. */
internal data class JsonNumber(val text: String)

internal class NotJson : Exception("this is not JSON")

private const val MAX_DEPTH = 64
private val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")
private val ESCAPED = mapOf('"' to '"', '\\' to '\\', '/' to '/', 'b' to '\b', 'f' to '\u000c', 'n' to '\n', 'r' to '\r', 't' to '\t')
private const val DELIMITERS = ",]} \t\r\n"

/** Read a document; throws NotJson. */
internal fun readJson(text: String): Any? = JsonReader(text).document()

private class JsonReader(private val text: String) {
    private var at = 0

    fun document(): Any? {
        val value = value(0)
        blank()
        if (at != text.length) throw NotJson()
        return value
    }

    private fun value(depth: Int): Any? {
        if (depth > MAX_DEPTH) throw NotJson()
        blank()
        return when (peek()) {
            '{' -> fields(depth)
            '[' -> list(depth)
            '"' -> string()
            else -> literal()
        }
    }

    private fun fields(depth: Int): Map<String, Any?> {
        val read = LinkedHashMap<String, Any?>()
        sequence('}') {
            val name = string()
            blank()
            take(':')
            if (name in read) throw NotJson()
            read[name] = value(depth + 1)
        }
        return read
    }

    private fun list(depth: Int): List<Any?> {
        val read = ArrayList<Any?>()
        sequence(']') { read.add(value(depth + 1)) }
        return read
    }

    /** What stands between brackets, separated by commas. */
    private fun sequence(end: Char, item: () -> Unit) {
        at += 1
        blank()
        if (peek() == end) {
            at += 1
            return
        }
        while (true) {
            blank()
            item()
            blank()
            if (peek() == end) {
                at += 1
                return
            }
            take(',')
        }
    }

    private fun string(): String {
        take('"')
        val read = StringBuilder()
        while (true) {
            val next = peek()
            at += 1
            when {
                next == '"' -> return read.toString()
                next < ' ' -> throw NotJson()
                next == '\\' -> read.append(escaped())
                else -> read.append(next)
            }
        }
    }

    private fun escaped(): Char {
        val kind = peek()
        at += 1
        if (kind != 'u') return ESCAPED[kind] ?: throw NotJson()
        val digits = text.substring(at, minOf(at + 4, text.length))
        if (digits.length < 4 || !digits.all { it in '0'..'9' || it in 'a'..'f' || it in 'A'..'F' }) throw NotJson()
        at += 4
        return digits.toInt(16).toChar()
    }

    private fun literal(): Any? {
        val begin = at
        while (at < text.length && text[at] !in DELIMITERS) at += 1
        return when (val word = text.substring(begin, at)) {
            "true" -> true
            "false" -> false
            "null" -> null
            else -> if (NUMBER.matches(word)) JsonNumber(word) else throw NotJson()
        }
    }

    private fun blank() {
        while (at < text.length && text[at] in " \t\r\n") at += 1
    }

    private fun peek(): Char = if (at < text.length) text[at] else throw NotJson()

    private fun take(wanted: Char) {
        if (peek() != wanted) throw NotJson()
        at += 1
    }
}

/** JSON with sorted keys and without blanks: the same value gives the same text. */
internal fun canonical(value: Any?): String = when (value) {
    null, is Boolean, is Int, is Long -> value.toString()
    is JsonNumber -> value.text
    is String -> quoted(value)
    is List<*> -> value.joinToString(",", "[", "]") { canonical(it) }
    is Map<*, *> -> value.entries.sortedBy { it.key as String }
        .joinToString(",", "{", "}") { quoted(it.key as String) + ":" + canonical(it.value) }
    else -> throw IllegalArgumentException("not a JSON value")
}

private fun quoted(text: String): String = text.asIterable().joinToString("", "\"", "\"") { each ->
    when {
        each == '"' || each == '\\' -> "\\$each"
        each < ' ' || each.isSurrogate() -> "\\u%04x".format(each.code)
        else -> each.toString()
    }
}
