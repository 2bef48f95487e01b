/** A file store for the JVM and for Android from API level 26. */
package sfumato.device

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.InvalidPathException
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
 * The path is resolved once, through all links. A change writes to the file to which a link points, and keeps the link.
 *
 * Each change replaces the whole file and syncs it to disk. A lock file next to it prevents concurrent changes by two
 * processes or threads. The file contains secret participation draws. Do not copy it to a second device, and exclude it
 * from backups: with an old file the device could perturb one record twice.
 *
 * @param file The file. The first change creates the file and its directory.
 */
public class FileStore(file: File) : Store {
    private val path: Path = attempt(file.path) { resolveLinks(file.absoluteFile.toPath()) }
    private val lockPath = path.resolveSibling("${path.fileName}.lock")
    private val newPath = path.resolveSibling("${path.fileName}.new")

    /** The file, without links. A later change of a link does not change it. */
    override val location: String get() = path.toString()

    override fun read(datasetId: String): Memory = load()[datasetId] ?: Memory() // needs no lock, because a change replaces the whole file

    override fun <T> change(datasetId: String, change: (Memory) -> T): T = withLock {
        val memories = load()
        val before = encodeMemories(memories)
        val result = change(memories.getOrPut(datasetId) { Memory() })
        val after = encodeMemories(memories)
        if (after != before) attempt(location) { save(after) }
        result
    }

    private fun <T> withLock(work: () -> T): T = synchronized(LOCKS.computeIfAbsent(path) { Any() }) {
        val channel = attempt(location) {
            Files.createDirectories(path.parent)
            open(lockPath)
        }
        channel.use {
            attempt(location) { it.lock() } // closing the channel releases the lock
            checkOneName()
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

    /** Throw StoreUnusable if the file has a second hard link. A change would separate the two files. */
    private fun checkOneName() {
        if ("unix" !in path.fileSystem.supportedFileAttributeViews() || Files.notExists(path)) return
        val links = attempt(location) { Files.getAttribute(path, "unix:nlink") as Int }
        if (links > 1) throw StoreUnusable("$path has $links hard links: delete all but one; no report was sent")
    }

    private companion object {
        val LOCKS = ConcurrentHashMap<Path, Any>()
        const val MAX_LINKS = 40
        val OWNER_ONLY = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))

        /** Return an absolute path without links. The file, and directories above it, may not exist yet. */
        fun resolveLinks(path: Path): Path {
            var file = path
            repeat(MAX_LINKS) {
                val parent = file.parent ?: throw StoreUnusable("$path is a directory: pass the path of a file")
                file = resolveDirectory(parent).resolve(file.fileName).normalize()
                if (!Files.isSymbolicLink(file)) return file
                file = file.resolveSibling(Files.readSymbolicLink(file))
            }
            throw StoreUnusable("$path has too many links")
        }

        fun resolveDirectory(path: Path): Path = try {
            path.toRealPath()
        } catch (error: NoSuchFileException) {
            if (path.parent == null) throw error
            resolveLinks(path)
        }

        fun <T> attempt(location: String, work: () -> T): T = try {
            work()
        } catch (error: IOException) {
            throw StoreUnusable("$location cannot be used: ${error.javaClass.simpleName}")
        } catch (_: InvalidPathException) {
            throw StoreUnusable("the path of the store has a character that no file name can have")
        }
    }
}
