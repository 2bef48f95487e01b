/** A file store for the JVM and for Android from API level 26. */
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
 * A store in one JSON file that only its owner can read, on file systems with POSIX permissions.
 *
 * Each change replaces the whole file and syncs it to disk. A lock file next to it prevents concurrent changes by two
 * processes or threads. The file contains secret participation draws. Do not copy it to a second device, and exclude it
 * from backups: with an old file the device could perturb one record twice.
 *
 * @param file The file. The first change creates the file and its directory.
 */
public class FileStore(file: File) : Store {
    private val path: Path = file.absoluteFile.toPath().normalize()
    private val lockPath = path.resolveSibling("${path.fileName}.lock")
    private val newPath = path.resolveSibling("${path.fileName}.new")

    override fun read(datasetId: String): Memory = load()[datasetId] ?: Memory() // needs no lock, because a change replaces the whole file

    override fun <T> change(datasetId: String, change: (Memory) -> T): T = withLock {
        val memories = load()
        val before = encodeMemories(memories)
        val result = change(memories.getOrPut(datasetId) { Memory() })
        val after = encodeMemories(memories)
        if (after != before) attempt { save(after) }
        result
    }

    private fun <T> withLock(work: () -> T): T = synchronized(LOCKS.computeIfAbsent(path) { Any() }) {
        val channel = attempt {
            Files.createDirectories(path.parent)
            open(lockPath)
        }
        channel.use {
            attempt { it.lock() } // closing the channel releases the lock
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
            decodeMemories(text)
        } catch (_: Exception) { // any decoding error means that the file is damaged
            throw StoreUnusable("$path is damaged or has another version; no report was sent")
        }
    }

    private fun save(text: String) {
        Files.deleteIfExists(newPath) // left over after a crash
        open(newPath).use { channel ->
            val bytes = ByteBuffer.wrap(text.toByteArray())
            while (bytes.hasRemaining()) channel.write(bytes)
            channel.force(true)
        }
        Files.move(newPath, path, ATOMIC_MOVE)
        if (isPosix()) FileChannel.open(path.parent, READ).use { it.force(true) } // otherwise a power failure could undo the rename
    }

    private fun open(file: Path): FileChannel {
        val options = setOf(WRITE, CREATE, TRUNCATE_EXISTING)
        return if (isPosix()) FileChannel.open(file, options, OWNER_ONLY) else FileChannel.open(file, options)
    }

    private fun isPosix(): Boolean = "posix" in path.fileSystem.supportedFileAttributeViews()

    private fun <T> attempt(work: () -> T): T = try {
        work()
    } catch (error: IOException) {
        throw StoreUnusable("$path cannot be used: ${error.javaClass.simpleName}")
    }

    private companion object {
        val LOCKS = ConcurrentHashMap<Path, Any>()
        val OWNER_ONLY = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
    }
}
