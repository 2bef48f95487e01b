/** A first report, as an app makes it; compiled with the check, so that it stays true. */
package sfumato.device.example

import sfumato.device.ByName
import sfumato.device.Device
import sfumato.device.FileStore
import sfumato.device.Outcome
import sfumato.device.SfumatoException
import java.io.File

/** Call it from a thread that may wait: the device speaks to the network and to the disk. */
fun reportPlace(url: String, key: String, datasetId: String, directory: File, east: Double, north: Double): Outcome? {
    val device = Device(url, key, datasetId, cap = "2", store = FileStore(File(directory, "sfumato.json")))
    return try {
        device.report(ByName(mapOf("east" to east, "north" to north))).outcome
    } catch (refused: SfumatoException) {
        null // `refused.code` says why; what was perturbed already is sent by the next call
    }
}
