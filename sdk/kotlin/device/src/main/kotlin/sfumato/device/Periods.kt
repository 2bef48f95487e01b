/**
 * Cap of a device for a day, week, month, quarter or year, by the device's own clock.
 *
 * The lifetime cap does not stop a server that opens the rounds of a year within a day. The cap of a period does. The device
 * therefore reads neither the times nor the indices of the service. Its periods never go back: the day of an answer is never
 * before that of an earlier answer, even if the clock is.
 *
 * Periods are those of the Gregorian calendar in UTC, so that a change of the time zone begins no new period. Weeks begin on
 * Monday.
 */
package sfumato.device

import java.math.BigInteger
import java.time.LocalDate

internal const val LAST_DAY = 2_900_000L // in the year 9909; a later clock counts as this day
private const val DAY_SECONDS = 86_400L

/** A period of the calendar in UTC. */
public enum class Period(internal val longest: Long, private val months: Int) {
    /** A day. */
    DAY(1, 0),

    /** A week, which begins on Monday. */
    WEEK(7, 0),

    /** A month. */
    MONTH(31, 1),

    /** A quarter of a year. */
    QUARTER(92, 3),

    /** A year. */
    YEAR(366, 12);

    /** Return the first day of the period that contains a day, both in days since 1970-01-01. */
    internal fun firstDay(day: Long): Long {
        if (this == WEEK) return day - (day + 3) % 7
        if (months == 0) return day
        val on = LocalDate.ofEpochDay(day)
        return LocalDate.of(on.year, on.monthValue - (on.monthValue - 1) % months, 1).toEpochDay()
    }

    /** Return the first day of the next period. */
    internal fun nextBegin(day: Long): LocalDate = LocalDate.ofEpochDay(firstDay(firstDay(day) + longest))
}

/**
 * The largest epsilon that a device spends on a dataset within a period.
 *
 * @param period Period of the calendar in UTC.
 * @param epsilon Epsilon in [1e-6, 32] with at most nine decimals.
 * @throws InvalidSpec The epsilon is not valid.
 */
public class PeriodCap(public val period: Period, epsilon: String) {
    internal val capNano: BigInteger = parseEpsilon(epsilon)
}

/** Return the day of an answer at a time in seconds since 1970-01-01 UTC: never before the days of earlier answers. */
internal fun findDay(seconds: Long, memory: Memory): Long =
    memory.memos.values.fold(Math.floorDiv(seconds, DAY_SECONDS).coerceIn(0, LAST_DAY)) { latest, memo -> maxOf(latest, memo.day) }
