/**
 * Mechanisms: how a symbol is perturbed, as published, and what a report costs.
 *
 * Each draws the same words in the same order as every other Sfumato device, so that published
 * vectors hold them all to the same bytes. Comments name the words drawn.
 */
package sfumato.device

import java.math.BigInteger

private const val MAX_BIT_SYMBOLS = 4096L // subset selection, unary encoding and the window
private const val MAX_HASH_RANGE = 1L shl 16
private const val HASH_SPAN = 1L shl 31
private const val HASH_PRIME = HASH_SPAN - 1
private val HALF_SPAN = WORD_SPAN.shiftRight(1)

/** How a symbol is perturbed. */
internal class Mechanism(
    /** How many symbols there are; of discrete_laplace, whose symbols are vectors, null. */
    val nSymbols: Long?,
    /** Width of a report's value. */
    val valueBytes: Int,
    /** What one report costs: the realised epsilon of the published integers in nano-epsilon, rounded up. */
    val epsilonNano: () -> BigInteger,
    /** Of discrete_laplace: the lattice it goes with, as features and steps. */
    val lattice: Pair<Int, Long>? = null,
    /** One device's report value. */
    val perturb: (symbol: LongArray, entropy: Entropy) -> ByteArray,
)

internal val MECHANISMS: Map<String, (Map<*, *>) -> Mechanism> = mapOf(
    "grr" to ::grr,
    "ss" to ::ss,
    "oue" to ::oue,
    "olh" to ::olh,
    "hr" to ::hr,
    "window" to ::window,
    "discrete_laplace" to ::discreteLaplace,
)

/** The cost of a channel from one probability ratio, whichever way up it is. */
private fun costOf(one: BigInteger, other: BigInteger): BigInteger {
    check(one.signum() > 0 && other.signum() > 0) { "this mechanism gives the symbol away: it has no finite epsilon" }
    return if (one > other) realisedEpsilon(one, other) else realisedEpsilon(other, one)
}

private fun threshold(wire: Map<*, *>, name: String, most: BigInteger = WORD_SPAN - BigInteger.ONE): BigInteger =
    decimalWord(wire[name], name, BigInteger.ONE, most)

private fun symbols(wire: Map<*, *>, most: Long): Long = integer(wire["n_symbols"], "n_symbols", 2, most)

private operator fun BigInteger.times(other: Long): BigInteger = this * BigInteger.valueOf(other)

/** Randomised response's sent symbol. Words drawn: the decision, then the other symbol if needed. */
private fun respond(symbol: Long, nSymbols: Long, keep: BigInteger, entropy: Entropy): Long {
    if (entropy.word() < keep) return symbol
    val other = entropy.below(nSymbols - 1)
    return if (other >= symbol) other + 1 else other
}

/** k-ary randomised response: keeps the symbol where a word < keep_threshold. */
private fun grr(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "grr", listOf("type", "n_symbols", "keep_threshold"))
    val k = symbols(wire, MAX_SYMBOLS)
    val keep = threshold(wire, "keep_threshold", WORD_SPAN)
    val width = bytesOf(k - 1)
    return Mechanism(k, width, { costOf(keep * (k - 1), WORD_SPAN - keep) }) { (own), entropy ->
        littleEndian(respond(own, k, keep, entropy), width)
    }
}

private fun ByteArray.setBit(index: Long) {
    val place = (index shr 3).toInt()
    this[place] = (this[place].toInt() or (1 shl (index and 7).toInt())).toByte()
}

private fun ByteArray.hasBit(index: Long): Boolean = this[(index shr 3).toInt()].toInt() shr (index and 7).toInt() and 1 == 1

/**
 * Subset selection: a subset of d symbols that holds the own one where a word < hold_threshold.
 * Words drawn: the decision, then one for each other symbol, by Floyd's sampling.
 */
private fun ss(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "ss", listOf("type", "n_symbols", "subset_size", "hold_threshold"))
    val k = symbols(wire, MAX_BIT_SYMBOLS)
    val d = integer(wire["subset_size"], "subset_size", 1, k - 1)
    val hold = threshold(wire, "hold_threshold")
    val width = ((k + 7) / 8).toInt()
    return Mechanism(k, width, { costOf(hold * (k - d), (WORD_SPAN - hold) * d) }) { (own), entropy ->
        fun skipping(other: Long) = if (other >= own) other + 1 else other
        val named = ByteArray(width)
        val isHeld = entropy.word() < hold
        if (isHeld) named.setBit(own)
        for (last in k - 1 - (if (isHeld) d - 1 else d) until k - 1) {
            val place = skipping(entropy.below(last + 1))
            named.setBit(if (named.hasBit(place)) skipping(last) else place)
        }
        named
    }
}

/** Unary encoding: the own bit by a fair coin, another where a word < other_threshold. Words drawn: one a symbol. */
private fun oue(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "oue", listOf("type", "n_symbols", "other_threshold"))
    val k = symbols(wire, MAX_BIT_SYMBOLS)
    val other = threshold(wire, "other_threshold")
    val width = ((k + 7) / 8).toInt()
    return Mechanism(k, width, { costOf(WORD_SPAN - other, other) }) { (own), entropy ->
        val named = ByteArray(width)
        for (index in 0 until k) {
            if (entropy.word() < (if (index == own) HALF_SPAN else other)) named.setBit(index)
        }
        named
    }
}

/** Local hashing. Words drawn: the public seed a, b, c, then randomised response of the hashed symbol. */
private fun olh(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "olh", listOf("type", "n_symbols", "hash_range", "keep_threshold"))
    val k = symbols(wire, MAX_SYMBOLS)
    val g = integer(wire["hash_range"], "hash_range", 2, MAX_HASH_RANGE)
    val keep = threshold(wire, "keep_threshold")
    val width = bytesOf(g - 1)
    return Mechanism(k, 12 + width, { costOf(keep * (g - 1), WORD_SPAN - keep) }) { (x), entropy ->
        val seed = List(3) { entropy.below(HASH_PRIME) }
        val (a, b, c) = seed
        val hashed = ((a * x + b) % HASH_PRIME * x + c) % HASH_PRIME * g / HASH_SPAN
        val sent = respond(hashed, g, keep, entropy)
        joined(seed.map { littleEndian(it, 4) } + listOf(littleEndian(sent, width)))
    }
}

/** Hadamard response: the sign of a public Walsh coefficient. Words drawn: the coefficient, then the decision. */
private fun hr(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "hr", listOf("type", "n_symbols", "keep_threshold"))
    val k = symbols(wire, MAX_SYMBOLS)
    val keep = threshold(wire, "keep_threshold")
    var nCoefficients = 2L // the least power of two above k
    while (nCoefficients <= k) nCoefficients *= 2
    val width = bytesOf(2 * nCoefficients - 1)
    return Mechanism(k, width, { costOf(keep, WORD_SPAN - keep) }) { (own), entropy ->
        val index = entropy.below(nCoefficients)
        val lies = entropy.word() >= keep
        val isNegative = ((index and (own + 1)).countOneBits() % 2 == 1) != lies
        littleEndian(2 * index + if (isNegative) 1 else 0, width)
    }
}

/** The cyclic window. Words drawn: the decision, then the place inside the window or outside. */
private fun window(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "window", listOf("type", "n_symbols", "window_size", "inside_threshold"))
    val k = symbols(wire, MAX_BIT_SYMBOLS)
    val w = integer(wire["window_size"], "window_size", 1, k - 1)
    val inside = threshold(wire, "inside_threshold")
    val width = bytesOf(k - 1)
    return Mechanism(k, width, { costOf(inside * (k - w), (WORD_SPAN - inside) * w) }) { (own), entropy ->
        val offset = if (entropy.word() < inside) entropy.below(w) else w + entropy.below(k - w)
        littleEndian((own + offset - w / 2).mod(k), width)
    }
}

/** Exact discrete Laplace noise on a lattice's vectors. Words drawn: each feature's noise, the first's first. */
private fun discreteLaplace(wire: Map<*, *>): Mechanism {
    onlyKeys(wire, "discrete_laplace", listOf("type", "n_features", "steps", "scale_numerator", "scale_denominator", "margin"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES.toLong()).toInt()
    val steps = integer(wire["steps"], "steps", 1, MAX_STEPS)
    val t = integer(wire["scale_numerator"], "scale_numerator", 0, 1L shl 32)
    val s = integer(wire["scale_denominator"], "scale_denominator", 1, 1L shl 32)
    check(t <= (1L shl 26) * s) { "the scale is at most 67108864 lattice units" }
    val margin = integer(wire["margin"], "margin", 0, 1L shl 30)
    val largest = steps + 2 * margin
    val width = bytesOf(largest)
    val cost = {
        check(t > 0) { "this mechanism gives the symbol away: it has no finite epsilon" }
        val units = BigInteger.valueOf(nFeatures.toLong()) * steps * s * NANO
        (units + BigInteger.valueOf(t - 1)) / BigInteger.valueOf(t)
    }
    return Mechanism(null, nFeatures * width, cost, Pair(nFeatures, steps)) { vector, entropy ->
        joined(vector.map { littleEndian((it + margin + noise(t, s, steps + margin, entropy)).coerceIn(0, largest), width) })
    }
}

/** One draw, P(z) ~ exp(-|z| s/t), exact up to `reach`, past which the clamp hides it (Canonne et al., algorithm 2). */
private fun noise(t: Long, s: Long, reach: Long, entropy: Entropy): Long {
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

private fun joined(parts: List<ByteArray>): ByteArray = parts.fold(ByteArray(0)) { whole, part -> whole + part }
