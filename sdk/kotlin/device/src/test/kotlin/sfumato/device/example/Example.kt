/** An example that sends a first report. A test runs it with the URL, the key, the dataset and a folder. */
package sfumato.device.example

import sfumato.device.Device
import sfumato.device.FileStore
import sfumato.device.NamedRecord
import sfumato.device.Outcome
import sfumato.device.SfumatoException
import java.io.File

/** Send the report of a position. Call this from a background thread, because it uses the network and the disk. */
fun reportPosition(url: String, key: String, datasetId: String, directory: File, east: Double, north: Double): Outcome? {
    val device = Device(url, key, datasetId, cap = "2", store = FileStore(File(directory, "sfumato.json")))
    return try {
        device.report(NamedRecord(mapOf("east" to east, "north" to north))).outcome
    } catch (error: SfumatoException) {
        null // `error.code` is the reason; the next call sends pending reports
    }
}

fun main(arguments: Array<String>) {
    val (url, key, datasetId, directory) = arguments
    println(reportPosition(url, key, datasetId, File(directory), east = 3.2, north = 7.9))
}
