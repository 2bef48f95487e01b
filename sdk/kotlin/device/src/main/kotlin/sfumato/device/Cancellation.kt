/** The end of a call of a device before its time. A call checks it between its steps, and never while it changes the store. */
package sfumato.device

import java.util.concurrent.CancellationException
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

internal class Cancellation {
    private val cancelled = CountDownLatch(1)
    private var stop: (() -> Unit)? = null

    /** Cancel the call, and end its request. This may block, because a connection is closed. */
    fun cancel() {
        val action = synchronized(this) {
            cancelled.countDown()
            stop
        }
        action?.invoke()
    }

    /** Set what ends the present request, or null if there is none. */
    fun stopWith(action: (() -> Unit)?) {
        synchronized(this) { stop = action }
    }

    /** Throw CancellationException if the call was cancelled. */
    fun check() {
        if (cancelled.count == 0L) throw CancellationException("the call was cancelled")
    }

    /** Pause the thread. Throw CancellationException if the call was cancelled before the end of the pause. */
    fun pause(seconds: Double) {
        cancelled.await((1000 * seconds).toLong(), TimeUnit.MILLISECONDS)
        check()
    }
}
