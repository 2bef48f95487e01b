/**
 * Durable memory of a device: its participation draws and the rounds that it answered.
 *
 * Without this memory a device would perturb the same record again for the same round, and averaging the reports would
 * remove the noise. It would also not know its spent epsilon. Therefore every change is stored before a report is sent.
 * A memory that cannot be read is an error and is not replaced by an empty one.
 */
package sfumato.device

import java.math.BigInteger

internal const val STORE_VERSION = 1

/** The state of a report. */
public enum class MemoState {
    /** The service has not acknowledged the report yet. */
    PENDING,

    /** The service stored the report. */
    ACKNOWLEDGED,

    /** The round closed before the report arrived. */
    CLOSED,

    /** The service rejected the report. */
    REFUSED,
}

/** A round that this device answered. Memos are never deleted, because their cost stays spent. */
public data class Memo(
    val roundId: String,
    val collectionId: String,
    /** Cost of the report: the realised epsilon in nano-epsilon, rounded up. */
    val epsilonNano: BigInteger,
    /** SHA-256 of the round spec at the time of the report, in hex. */
    val specHash: String,
    val state: MemoState,
    /** Random id of the report, 32 hex digits. It is empty for a sealed report. */
    val reportId: String,
    /** Slot of the report, or null for a sealed report and once the state is final. */
    val slot: Long?,
    /** Perturbed value, or outer key and sealed report, in base64. It is null once the state is final. */
    val value: String?,
    /** UTC day of the answer by the clock of the device, in days since 1970-01-01. It is never before that of an earlier answer. */
    val day: Long = 0,
)

/** The memory of a device for one dataset. Its draws are secret, because they reveal in which rounds the device takes part. */
public class Memory {
    /** Secret participation draw by collection id. */
    public val draws: MutableMap<String, BigInteger> = LinkedHashMap()

    /** Answered rounds by round id, in the order of answering. */
    public val memos: MutableMap<String, Memo> = LinkedHashMap()

    /** The spent epsilon, in nano-epsilon. */
    public val spentNano: BigInteger get() = spentNanoSince(0)

    /** Return the epsilon of the answers since a day, in nano-epsilon. */
    internal fun spentNanoSince(day: Long): BigInteger =
        memos.values.filter { it.day >= day }.fold(BigInteger.ZERO) { sum, memo -> sum + memo.epsilonNano }

    internal fun copy(): Memory = Memory().also {
        it.draws.putAll(draws)
        it.memos.putAll(memos)
    }
}

/** Storage for the memory of a device. One store can serve several datasets. */
public interface Store {
    /** Where the memory is, for example the path of a file. A receipt names it. */
    public val location: String? get() = null

    /** Return a copy of the memory. For an unknown dataset, return an empty memory. Throw StoreUnusable if it cannot be read. */
    public fun read(datasetId: String): Memory

    /**
     * Apply `change` to the memory and store the changed memory durably.
     *
     * Allow no other change at the same time. If `change` throws, leave the stored memory unchanged. Return after the change
     * is durable.
     *
     * @throws StoreUnusable The memory cannot be read, written or locked.
     */
    public fun <T> change(datasetId: String, change: (Memory) -> T): T
}

/** A store that loses its memory when the process ends. Use it for tests and simulations only. */
public class MemoryStore : Store {
    private val memories = HashMap<String, Memory>()

    override fun read(datasetId: String): Memory = synchronized(memories) { memories[datasetId]?.copy() ?: Memory() }

    override fun <T> change(datasetId: String, change: (Memory) -> T): T = synchronized(memories) {
        val memory = read(datasetId)
        change(memory).also { memories[datasetId] = memory }
    }
}

// ---- stored form: {"version", "datasets", "sha256" of the canonical JSON of "datasets"} ----

/** Serialise memories, by dataset id, with a checksum. */
internal fun encodeMemories(memories: Map<String, Memory>): String {
    val datasets = memories.mapValues { (_, memory) ->
        mapOf(
            "draws" to memory.draws.mapValues { it.value.toString() },
            "rounds" to memory.memos.values.map(::encodeMemo),
        )
    }
    return toCanonicalJson(mapOf("version" to STORE_VERSION, "datasets" to datasets, "sha256" to sha256(toCanonicalJson(datasets))))
}

/** Parse the text of `encodeMemories`. Throw NotJson, InvalidSpec or another RuntimeException if it is damaged. */
internal fun decodeMemories(text: String): MutableMap<String, Memory> {
    val document = asObject(readJson(text), "a memory")
    val datasets = asObject(document["datasets"], "datasets")
    check(document["version"] == JsonNumber(STORE_VERSION.toString())) { "unsupported version" }
    check(document["sha256"] == sha256(toCanonicalJson(datasets))) { "wrong checksum" }
    val memories = LinkedHashMap<String, Memory>()
    for ((datasetId, stored) in datasets) memories[datasetId as String] = readMemory(asObject(stored, "a dataset"))
    return memories
}

private fun readMemory(wire: Map<*, *>): Memory {
    val memory = Memory()
    for ((collectionId, draw) in asObject(wire["draws"], "draws")) {
        memory.draws[collectionId as String] = decimalWord(draw, "participation", BigInteger.ZERO, WORD_SPAN - BigInteger.ONE)
    }
    for (stored in wire["rounds"] as List<*>) readMemo(asObject(stored, "a memo")).let { memory.memos[it.roundId] = it }
    return memory
}

private fun encodeMemo(memo: Memo): Map<String, Any?> = mapOf(
    "round_id" to memo.roundId,
    "collection_id" to memo.collectionId,
    "epsilon_nano" to memo.epsilonNano.toString(),
    "spec_hash" to memo.specHash,
    "state" to memo.state.name.lowercase(),
    "report_id" to memo.reportId,
    "slot" to memo.slot,
    "value" to memo.value,
    "day" to memo.day,
)

private fun readMemo(wire: Map<*, *>): Memo {
    val memo = Memo(
        roundId = wire["round_id"] as String,
        collectionId = wire["collection_id"] as String,
        epsilonNano = decimalWord(wire["epsilon_nano"], "epsilon_nano", BigInteger.ZERO, WORD_SPAN),
        specHash = wire["spec_hash"] as String,
        state = MemoState.valueOf((wire["state"] as String).uppercase()),
        reportId = wire["report_id"] as String,
        slot = (wire["slot"] as JsonNumber?)?.text?.toLong(),
        value = wire["value"] as String?,
        day = integer(wire["day"], "day", 0, LAST_DAY),
    )
    check((memo.state == MemoState.PENDING) == (memo.value != null)) { "a pending memo must have a value" }
    return memo
}
