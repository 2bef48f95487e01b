/**
 * Mechanisms: the randomised functions that perturb a symbol, and the cost of a report.
 *
 * All Sfumato SDKs draw the same random words in the same order, so the published vectors fix every byte of a report. The
 * comments list the words in the order of drawing.
 */
package sfumato.device

import java.math.BigInteger

private const val MAX_BIT_SYMBOLS = 4097L // limit for subset selection and unary encoding: 4096 cells and the symbol outside
private const val MAX_RESPONSE_SYMBOLS = MAX_SYMBOLS + 1
private const val MAX_WINDOW_SYMBOLS = 4096L
private const val MAX_HASH_RANGE = 1L shl 16
private const val HASH_SPAN = 1L shl 31
private const val HASH_PRIME = HASH_SPAN - 1
private val HALF_SPAN = WORD_SPAN.shiftRight(1)

/** A randomised function that perturbs a symbol. */
internal class Mechanism(
    /** Number of symbols, or null for discrete_laplace, where symbols are vectors. */
    val nSymbols: Long?,
    /** Length of the value of a report in bytes. */
    val valueBytes: Int,
    /** Cost of one report: the realised epsilon of the published thresholds in nano-epsilon, rounded up. */
    val epsilonNano: () -> BigInteger,
    /** Number of features and steps of the matching lattice, or null for other mechanisms than discrete_laplace. */
    val lattice: Pair<Int, Long>? = null,
    /** Last number of the vector of a record outside of the bounds, or 0 if vectors have no such number. */
    val mark: Long = 0,
    /** Returns the perturbed value of a report. */
    val perturb: (symbol: LongArray, entropy: Entropy) -> ByteArray,
)

/** Readers of the mechanisms, by their `type` in JSON. */
internal val MECHANISMS: Map<String, (Map<*, *>) -> Mechanism> = mapOf(
    "grr" to ::readGrr,
    "ss" to ::readSs,
    "oue" to ::readOue,
    "olh" to ::readOlh,
    "hr" to ::readHr,
    "window" to ::readWindow,
    "discrete_laplace" to ::readDiscreteLaplace,
)

/** Return the cost of a mechanism from the two sides of its largest probability ratio, in any order. */
private fun computeCost(one: BigInteger, other: BigInteger): BigInteger {
    check(one.signum() > 0 && other.signum() > 0) { "the mechanism does not hide the symbol: its epsilon is infinite" }
    return if (one > other) realisedEpsilon(one, other) else realisedEpsilon(other, one)
}

/** Read a probability threshold. */
private fun readThreshold(wire: Map<*, *>, name: String, most: BigInteger = WORD_SPAN - BigInteger.ONE): BigInteger =
    decimalWord(wire[name], name, BigInteger.ONE, most)

/** Read the number of symbols. */
private fun readSymbolCount(wire: Map<*, *>, most: Long): Long = integer(wire["n_symbols"], "n_symbols", 2, most)

private operator fun BigInteger.times(other: Long): BigInteger = this * BigInteger.valueOf(other)

/** Apply randomised response to a symbol. Words: the decision, then the other symbol if needed. */
private fun respond(symbol: Long, nSymbols: Long, keep: BigInteger, entropy: Entropy): Long {
    if (entropy.word() < keep) return symbol
    val other = entropy.drawBelow(nSymbols - 1)
    return if (other >= symbol) other + 1 else other
}

/** Read k-ary randomised response, which keeps the symbol if a word is below keep_threshold. */
private fun readGrr(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "grr", listOf("type", "n_symbols", "keep_threshold"))
    val k = readSymbolCount(wire, MAX_RESPONSE_SYMBOLS)
    val keep = readThreshold(wire, "keep_threshold", WORD_SPAN)
    val width = byteWidth(k - 1)
    return Mechanism(k, width, { computeCost(keep * (k - 1), WORD_SPAN - keep) }) { (own), entropy ->
        encodeLittleEndian(respond(own, k, keep, entropy), width)
    }
}

private fun ByteArray.setBit(index: Long) {
    val byte = (index shr 3).toInt()
    this[byte] = (this[byte].toInt() or (1 shl (index and 7).toInt())).toByte()
}

private fun ByteArray.hasBit(index: Long): Boolean = this[(index shr 3).toInt()].toInt() shr (index and 7).toInt() and 1 == 1

/**
 * Read subset selection. The value is a subset of d symbols, which contains the true symbol if a word is below
 * hold_threshold. Words: the decision, then one for each other symbol of the subset (Floyd's sampling).
 */
private fun readSs(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "ss", listOf("type", "n_symbols", "subset_size", "hold_threshold"))
    val k = readSymbolCount(wire, MAX_BIT_SYMBOLS)
    val d = integer(wire["subset_size"], "subset_size", 1, k - 1)
    val hold = readThreshold(wire, "hold_threshold")
    val width = ((k + 7) / 8).toInt()
    return Mechanism(k, width, { computeCost(hold * (k - d), (WORD_SPAN - hold) * d) }) { (own), entropy ->
        fun skipOwn(other: Long) = if (other >= own) other + 1 else other
        val subset = ByteArray(width)
        val hasOwn = entropy.word() < hold
        if (hasOwn) subset.setBit(own)
        for (last in k - 1 - (if (hasOwn) d - 1 else d) until k - 1) {
            val index = skipOwn(entropy.drawBelow(last + 1))
            subset.setBit(if (subset.hasBit(index)) skipOwn(last) else index)
        }
        subset
    }
}

/**
 * Read unary encoding. The bit of the true symbol is a fair coin. Each other bit is 1 if a word is below other_threshold.
 * Words: one per symbol.
 */
private fun readOue(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "oue", listOf("type", "n_symbols", "other_threshold"))
    val k = readSymbolCount(wire, MAX_BIT_SYMBOLS)
    val other = readThreshold(wire, "other_threshold")
    val width = ((k + 7) / 8).toInt()
    return Mechanism(k, width, { computeCost(WORD_SPAN - other, other) }) { (own), entropy ->
        val bits = ByteArray(width)
        for (index in 0 until k) {
            if (entropy.word() < (if (index == own) HALF_SPAN else other)) bits.setBit(index)
        }
        bits
    }
}

/** Read local hashing. Words: the public seed a, b, c, then randomised response on the hashed symbol. */
private fun readOlh(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "olh", listOf("type", "n_symbols", "hash_range", "keep_threshold"))
    val k = readSymbolCount(wire, MAX_RESPONSE_SYMBOLS)
    val g = integer(wire["hash_range"], "hash_range", 2, MAX_HASH_RANGE)
    val keep = readThreshold(wire, "keep_threshold")
    val width = byteWidth(g - 1)
    return Mechanism(k, 12 + width, { computeCost(keep * (g - 1), WORD_SPAN - keep) }) { (x), entropy ->
        val seed = List(3) { entropy.drawBelow(HASH_PRIME) }
        val (a, b, c) = seed
        val hashed = ((a * x + b) % HASH_PRIME * x + c) % HASH_PRIME * g / HASH_SPAN
        val response = respond(hashed, g, keep, entropy)
        concatenate(seed.map { encodeLittleEndian(it, 4) } + listOf(encodeLittleEndian(response, width)))
    }
}

/** Read Hadamard response: the sign of a public Walsh coefficient. Words: the coefficient, then the decision. */
private fun readHr(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "hr", listOf("type", "n_symbols", "keep_threshold"))
    val k = readSymbolCount(wire, MAX_RESPONSE_SYMBOLS)
    val keep = readThreshold(wire, "keep_threshold")
    var nCoefficients = 2L // smallest power of two above k
    while (nCoefficients <= k) nCoefficients *= 2
    val width = byteWidth(2 * nCoefficients - 1)
    return Mechanism(k, width, { computeCost(keep, WORD_SPAN - keep) }) { (own), entropy ->
        val index = entropy.drawBelow(nCoefficients)
        val isFlipped = entropy.word() >= keep
        val isNegative = ((index and (own + 1)).countOneBits() % 2 == 1) != isFlipped
        encodeLittleEndian(2 * index + if (isNegative) 1 else 0, width)
    }
}

/** Read the cyclic window. Words: the decision, then the position inside or outside the window. */
private fun readWindow(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "window", listOf("type", "n_symbols", "window_size", "inside_threshold"))
    val k = readSymbolCount(wire, MAX_WINDOW_SYMBOLS)
    val w = integer(wire["window_size"], "window_size", 1, k - 1)
    val inside = readThreshold(wire, "inside_threshold")
    val width = byteWidth(k - 1)
    return Mechanism(k, width, { computeCost(inside * (k - w), (WORD_SPAN - inside) * w) }) { (own), entropy ->
        val offset = if (entropy.word() < inside) entropy.drawBelow(w) else w + entropy.drawBelow(k - w)
        encodeLittleEndian((own + offset - w / 2).mod(k), width)
    }
}

/** Read exact discrete Laplace noise for the vectors of a lattice. Words: the noise of each number in order. */
private fun readDiscreteLaplace(wire: Map<*, *>): Mechanism {
    checkKeys(wire, "discrete_laplace", listOf("type", "n_features", "steps", "scale_numerator", "scale_denominator", "margin"), listOf("mark"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES.toLong()).toInt()
    val steps = integer(wire["steps"], "steps", 1, MAX_STEPS)
    val t = integer(wire["scale_numerator"], "scale_numerator", 0, 1L shl 32)
    val s = integer(wire["scale_denominator"], "scale_denominator", 1, 1L shl 32)
    check(t <= (1L shl 26) * s) { "the scale may be at most 67108864 lattice units" }
    val margin = integer(wire["margin"], "margin", 0, 1L shl 30)
    val mark = wire["mark"]?.let { integer(it, "mark", 0, nFeatures * (steps / 2)) } ?: 0L // so it adds nothing to the cost
    val nNumbers = nFeatures + if (mark > 0) 1 else 0
    val reach = maxOf(steps, mark)
    val largest = reach + 2 * margin
    val width = byteWidth(largest)
    val cost = {
        check(t > 0) { "the mechanism does not hide the symbol: its epsilon is infinite" }
        val units = BigInteger.valueOf(nFeatures.toLong()) * steps * s * NANO
        (units + BigInteger.valueOf(t - 1)) / BigInteger.valueOf(t)
    }
    return Mechanism(null, nNumbers * width, cost, Pair(nFeatures, steps), mark) { vector, entropy ->
        concatenate(vector.map { encodeLittleEndian((it + margin + drawNoise(t, s, reach + margin, entropy)).coerceIn(0, largest), width) })
    }
}

/**
 * Draw discrete Laplace noise z with probability proportional to exp(-|z| s/t).
 *
 * The draw is exact for |z| up to `reach`. Larger values are clamped by the caller, so their exact size does not matter.
 * Source: Canonne, Kamath and Steinke 2020, algorithm 2.
 */
private fun drawNoise(t: Long, s: Long, reach: Long, entropy: Entropy): Long {
    if (t == 0L) return 0
    val mostTurns = (reach * s + t - 1) / t // below 2^31 times 2^32
    while (true) {
        val part = entropy.pick(t)
        if (!entropy.bernoulliExp(part, t)) continue
        var turns = 0L
        while (turns < mostTurns && entropy.bernoulliExp(1, 1)) turns += 1
        val size = Math.addExact(part, Math.multiplyExact(t, turns)) / s
        val isNegative = entropy.pick(2) == 1L
        if (size > 0 || !isNegative) return if (isNegative) -size else size
    }
}

private fun concatenate(parts: List<ByteArray>): ByteArray = parts.fold(ByteArray(0)) { whole, part -> whole + part }
