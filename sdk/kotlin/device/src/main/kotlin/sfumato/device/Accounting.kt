/**
 * Epsilon arithmetic.
 *
 * Amounts are integers in nano-epsilon (10^-9), stored as BigInteger. Decimal numbers are used only for input and display.
 */
package sfumato.device

import java.math.BigDecimal
import java.math.BigInteger

internal val NANO: BigInteger = BigInteger.valueOf(1_000_000_000)
private val EPSILON_MIN = BigDecimal("0.000001")
private val EPSILON_MAX = BigDecimal(32) // a larger epsilon gives almost no protection
internal const val MAX_CHARACTERS = 64 // limit for a number given as text
internal val DECIMAL = Regex("[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]{1,4})?")

/**
 * Parse an epsilon exactly.
 *
 * @param text Epsilon in [1e-6, 32] with at most nine decimals.
 * @return The epsilon in nano-epsilon.
 * @throws InvalidSpec The text is not a number, is out of range, or has too many decimals.
 */
internal fun parseEpsilon(text: String): BigInteger {
    check(text.length <= MAX_CHARACTERS && DECIMAL.matches(text)) { "epsilon must be a number" }
    val exact = BigDecimal(text)
    check(exact in EPSILON_MIN..EPSILON_MAX) { "epsilon must lie in [0.000001, 32]" }
    val nano = exact.movePointRight(9).stripTrailingZeros()
    check(nano.scale() <= 0) { "epsilon may have at most nine decimals" }
    return nano.toBigIntegerExact()
}

/** Format nano-epsilon as a plain decimal: 1500000000 becomes "1.5". */
internal fun formatEpsilon(nano: BigInteger): String = BigDecimal(nano, 9).stripTrailingZeros().toPlainString()

private const val BITS = 256 // fraction bits of a fixed-point number
private val ONE = BigInteger.ONE.shiftLeft(BITS)
private val TWO = BigInteger.valueOf(2)
private val SLACK = BigInteger.ONE.shiftLeft(16) // upper bound on the sum of all rounding errors below

/** Return 2 atanh(z) for a fixed-point z in [0, 1/3]. For z = 1/3 the result is ln 2. */
private fun twiceAtanh(z: BigInteger): BigInteger {
    val square = (z * z).shiftRight(BITS)
    var power = z
    var sum = BigInteger.ZERO
    var odd = BigInteger.ONE
    while (power.signum() > 0) {
        sum += power / odd
        power = (power * square).shiftRight(BITS)
        odd += TWO
    }
    return sum.shiftLeft(1)
}

/**
 * Return the cost of a mechanism with the largest probability ratio numerator/denominator.
 *
 * @return ln(numerator/denominator) in nano-epsilon, rounded up, so that no cost is too small.
 * @throws InvalidSpec The ratio is below 1.
 */
internal fun realisedEpsilon(numerator: BigInteger, denominator: BigInteger): BigInteger {
    check(numerator >= denominator) { "the probability ratio must be at least 1" }
    if (numerator == denominator) return BigInteger.ZERO
    var doublings = 0 // ratio = 2^doublings * m with m in [1, 2)
    while (numerator >= denominator.shiftLeft(doublings + 1)) doublings += 1
    val base = denominator.shiftLeft(doublings)
    val z = (numerator - base).shiftLeft(BITS) / (numerator + base)
    val upper = BigInteger.valueOf(doublings.toLong()) * twiceAtanh(ONE / BigInteger.valueOf(3)) + twiceAtanh(z) + SLACK
    return (upper * NANO + ONE - BigInteger.ONE).shiftRight(BITS)
}
