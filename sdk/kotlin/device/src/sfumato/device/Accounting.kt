/**
 * What is spent: rules over integers (nano-epsilon), no state.
 *
 * An epsilon is a BigInteger of nano-epsilon wherever it is stored, added or compared; a decimal number
 * only where a person types or reads it.
 */
package sfumato.device

import java.math.BigDecimal
import java.math.BigInteger

internal val NANO: BigInteger = BigInteger.valueOf(1_000_000_000)
private val EPSILON_MIN = BigDecimal("0.000001")
private val EPSILON_MAX = BigDecimal(32) // beyond this a report says next to everything
private const val MAX_TYPED = 64 // characters of a number that comes as text
private val DECIMAL = Regex("[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]{1,4})?")

/** Read an epsilon as nano-epsilon, exactly; throws InvalidSpec. In [1e-6, 32], at most nine decimals. */
internal fun parseEpsilon(text: String): BigInteger {
    check(text.length <= MAX_TYPED && DECIMAL.matches(text)) { "epsilon must be a number" }
    val exact = BigDecimal(text)
    check(exact in EPSILON_MIN..EPSILON_MAX) { "epsilon must lie in [0.000001, 32]" }
    val nano = exact.movePointRight(9).stripTrailingZeros()
    check(nano.scale() <= 0) { "epsilon may have at most nine decimals" }
    return nano.toBigIntegerExact()
}

/** Write nano-epsilon as a plain decimal: 1500000000 -> "1.5". */
internal fun formatEpsilon(nano: BigInteger): String = BigDecimal(nano, 9).stripTrailingZeros().toPlainString()

private const val BITS = 256 // of a fixed-point number
private val ONE = BigInteger.ONE.shiftLeft(BITS)
private val TWO = BigInteger.valueOf(2)
private val SLACK = BigInteger.ONE.shiftLeft(16) // more than all the roundings below come to

/** 2 atanh(z) for a fixed-point z in [0, 1/3]; ln 2 is 2 atanh(1/3). */
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
 * The cost of a channel whose largest probability ratio is numerator/denominator, at least 1: the least
 * integer at or above ln(ratio) in nano-epsilon, which never under-charges.
 */
internal fun realisedEpsilon(numerator: BigInteger, denominator: BigInteger): BigInteger {
    check(numerator >= denominator) { "a probability ratio lies at or above 1" }
    if (numerator == denominator) return BigInteger.ZERO
    var doublings = 0 // ratio = 2^doublings m, m in [1, 2)
    while (numerator >= denominator.shiftLeft(doublings + 1)) doublings += 1
    val base = denominator.shiftLeft(doublings)
    val z = (numerator - base).shiftLeft(BITS) / (numerator + base)
    val upper = BigInteger.valueOf(doublings.toLong()) * twiceAtanh(ONE / BigInteger.valueOf(3)) + twiceAtanh(z) + SLACK
    return (upper * NANO + ONE - BigInteger.ONE).shiftRight(BITS)
}
