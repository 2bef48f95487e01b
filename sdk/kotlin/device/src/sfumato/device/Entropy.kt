/**
 * The only source of randomness on a device: words of the platform's cryptographic generator.
 *
 * Everything random a device does is made of 64-bit words drawn here and compared as integers. The
 * seam is `Entropy`, so that published test vectors can replay words; nothing here can be seeded.
 */
package sfumato.device

import java.math.BigInteger
import java.security.SecureRandom

internal val WORD_SPAN: BigInteger = BigInteger.ONE.shiftLeft(64)

/** Uniform, independent 64-bit words. */
public fun interface Entropy {
    /** Draw one word, uniform in [0, 2^64). */
    public fun word(): BigInteger
}

/** Words of `java.security.SecureRandom`. */
public class SystemEntropy : Entropy {
    private val generator = SecureRandom()

    override fun word(): BigInteger = BigInteger(1, ByteArray(8).also(generator::nextBytes))
}

/**
 * Draw uniformly from 0 .. bound-1, exactly: by rejection, without a remainder.
 *
 * The words are cut into `bound` runs of equal length; a word past the last run is drawn again.
 */
internal fun Entropy.below(bound: Long): Long {
    val runs = BigInteger.valueOf(bound)
    val run = WORD_SPAN / runs
    while (true) {
        val choice = word() / run
        if (choice < runs) return choice.toLong()
    }
}

/** Uniform in 0 .. bound-1; where there is one choice no word is drawn. */
internal fun Entropy.pick(bound: Long): Long = if (bound == 1L) 0 else below(bound)

/**
 * A coin of probability exp(-a/b), 0 <= a <= b: the k-th coin of a/(k b) is one of a/b and one of 1/k.
 *
 * Canonne, Kamath and Steinke 2020 ("The discrete Gaussian for differential privacy", algorithm 1).
 */
internal fun Entropy.bernoulliExp(a: Long, b: Long): Boolean {
    var k = 1L
    while (pick(b) < a && pick(k) == 0L) k += 1
    return k % 2 == 1L
}
