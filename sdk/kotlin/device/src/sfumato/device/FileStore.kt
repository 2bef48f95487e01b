/** A store in a file, for the JVM and for Android from API level 26. */
package sfumato.device

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.NoSuchFileException
import java.nio.file.Path
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.CREATE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.StandardOpenOption.TRUNCATE_EXISTING
import java.nio.file.StandardOpenOption.WRITE
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.ConcurrentHashMap

/**
 * One JSON file, replaced whole and synced at every change, readable by its owner alone where the file system knows owners.
 *
 * A lock file beside it keeps two processes of one app apart, and two threads. Copying the file to a second device,
 * or putting an old backup back, lets one record be perturbed twice: keep it out of backups.
 *
 * @param file The file; made at the first change, with its directory.
 */
public class FileStore(file: File) : Store {
    private val path: Path = file.absoluteFile.toPath().normalize()
    private val lockPath = path.resolveSibling("${path.fileName}.lock")
    private val newPath = path.resolveSibling("${path.fileName}.new")

    override fun read(datasetId: String): Memory = load()[datasetId] ?: Memory() // replaced whole, so there is nothing to wait for

    override fun <T> change(datasetId: String, change: (Memory) -> T): T = locked {
        val memories = load()
        val before = packed(memories)
        val done = change(memories.getOrPut(datasetId) { Memory() })
        val after = packed(memories)
        if (after != before) attempt { save(after) }
        done
    }

    private fun <T> locked(work: () -> T): T = synchronized(IN_THIS_PROCESS.computeIfAbsent(path) { Any() }) {
        val channel = attempt {
            Files.createDirectories(path.parent)
            open(lockPath)
        }
        channel.use {
            attempt { it.lock() } // which ends with the channel
            work()
        }
    }

    private fun load(): MutableMap<String, Memory> {
        val text = try {
            String(Files.readAllBytes(path), Charsets.UTF_8)
        } catch (_: NoSuchFileException) {
            return LinkedHashMap()
        } catch (error: IOException) {
            throw StoreUnusable("$path cannot be read: ${error.javaClass.simpleName}")
        }
        return try {
            unpacked(text)
        } catch (_: Exception) { // whatever is wrong with it, it is not what was written
            throw StoreUnusable("$path is damaged or of another version: not knowing what it answered, this device answers nothing")
        }
    }

    private fun save(text: String) {
        Files.deleteIfExists(newPath) // what a crash may have left
        open(newPath).use { channel ->
            val bytes = ByteBuffer.wrap(text.toByteArray())
            while (bytes.hasRemaining()) channel.write(bytes)
            channel.force(true)
        }
        Files.move(newPath, path, ATOMIC_MOVE)
        if (isPosix()) FileChannel.open(path.parent, READ).use { it.force(true) } // or a power cut could bring the old file back
    }

    private fun open(file: Path): FileChannel {
        val options = setOf(WRITE, CREATE, TRUNCATE_EXISTING)
        return if (isPosix()) FileChannel.open(file, options, OWNER_ALONE) else FileChannel.open(file, options)
    }

    private fun isPosix(): Boolean = "posix" in path.fileSystem.supportedFileAttributeViews()

    private fun <T> attempt(work: () -> T): T = try {
        work()
    } catch (error: IOException) {
        throw StoreUnusable("$path cannot be used: ${error.javaClass.simpleName}")
    }

    private companion object {
        val IN_THIS_PROCESS = ConcurrentHashMap<Path, Any>()
        val OWNER_ALONE = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
    }
}
