/** Suspending calls of a device. Needs the library `org.jetbrains.kotlinx:kotlinx-coroutines-core`, which the app declares. */
package sfumato.device

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.async
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.withContext

/**
 * The methods of a device as suspending functions, which work on `Dispatchers.IO`.
 *
 * A cancelled call closes its connection, ends its pauses, and returns after its thread has ended. It never interrupts a change
 * of the store. A report that is stored stays pending, and the next call sends the same bytes.
 */
public class SuspendingDevice(private val device: Device) {
    /** Answer all open rounds that select this device; see `Device.report`. */
    public suspend fun report(record: PersonRecord): Receipt = run { device.report(record, it) }

    /** Check a record; see `Device.check`. */
    public suspend fun check(record: PersonRecord): RecordCheck = run { device.check(record, it) }

    /** Resend pending reports; see `Device.flush`. */
    public suspend fun flush(): List<RoundOutcome> = run { device.flush(it) }

    /** Return the ids of rounds with reports that the service has not acknowledged yet. */
    public suspend fun pending(): List<String> = run { device.pending() }

    /** Return the epsilon that this device has spent on the dataset. */
    public suspend fun spent(): Double = run { device.spent }

    /** Return the epsilon that this device has spent in the current period; see `Device.spentInPeriod`. */
    public suspend fun spentInPeriod(): Double? = run { device.spentInPeriod }

    private suspend fun <T> run(work: (Cancellation) -> T): T = coroutineScope {
        val cancellation = Cancellation()
        val result = async(Dispatchers.IO) { work(cancellation) }
        try {
            result.await()
        } catch (error: CancellationException) {
            withContext(NonCancellable + Dispatchers.IO) { cancellation.cancel() }
            throw error
        }
    }
}

/** The methods of this device as suspending functions. */
public fun Device.suspending(): SuspendingDevice = SuspendingDevice(this)
