/**
 * The only source of randomness on a device: the platform's cryptographic generator.
 *
 * All random choices compare 64-bit words as integers. Tests replay the words of published vectors through the `Entropy`
 * interface. The generator cannot be seeded.
 */
package sfumato.device

import java.math.BigInteger
import java.security.SecureRandom

internal val WORD_SPAN: BigInteger = BigInteger.ONE.shiftLeft(64)

/** A source of uniform, independent 64-bit words. */
public fun interface Entropy {
    /** Draw one word, uniform in [0, 2^64). */
    public fun word(): BigInteger
}

/** Words from `java.security.SecureRandom`. */
public class SystemEntropy : Entropy {
    private val generator = SecureRandom()

    override fun word(): BigInteger = BigInteger(1, ByteArray(8).also(generator::nextBytes))
}

/**
 * Draw uniformly from 0 .. bound-1 by rejection sampling.
 *
 * Divide the range of words into `bound` runs of equal length. Reject a word beyond the last run and draw another.
 */
internal fun Entropy.drawBelow(bound: Long): Long {
    val runs = BigInteger.valueOf(bound)
    val run = WORD_SPAN / runs
    while (true) {
        val choice = word() / run
        if (choice < runs) return choice.toLong()
    }
}

/** Draw uniformly from 0 .. bound-1. Draw no word if `bound` is 1. */
internal fun Entropy.pick(bound: Long): Long = if (bound == 1L) 0 else drawBelow(bound)

/**
 * Return true with probability exp(-a/b), for 0 <= a <= b.
 *
 * Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", algorithm 1. A coin with
 * probability a/(k b) is drawn as one with probability a/b and one with probability 1/k.
 */
internal fun Entropy.bernoulliExp(a: Long, b: Long): Boolean {
    var k = 1L
    while (pick(b) < a && pick(k) == 0L) k += 1
    return k % 2 == 1L
}
