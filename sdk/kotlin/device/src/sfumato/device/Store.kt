/**
 * What a device must never forget: its draws, and what it answered to which round.
 *
 * A device that forgets would perturb the same record anew for the same round (averaging takes the
 * noise away) and would not know what it has spent. So every change is stored before anything is
 * sent, and a memory that cannot be read is refused, not begun anew.
 */
package sfumato.device

import java.math.BigInteger

internal const val STORE_VERSION = 1

/** Whether the service has the report: not known yet; yes; no, the round had closed; no, it did not take it. */
public enum class MemoState { PENDING, ACKNOWLEDGED, CLOSED, REFUSED }

/** One round this device answered; kept for ever, because what it cost stays spent. */
public data class Memo(
    val roundId: String,
    val collectionId: String,
    /** What the answer cost: the realised epsilon in nano-epsilon, rounded up. */
    val epsilonNano: BigInteger,
    /** SHA-256 of the round's spec as it was answered, in hex. */
    val specHash: String,
    val state: MemoState,
    /** 32 hex digits. */
    val reportId: String,
    /** Slot and perturbed value (base64) are dropped once the state is final. */
    val slot: Long?,
    val value: String?,
)

/** What a device remembers of one dataset. The draws are secret: whoever knows them knows which rounds the device was asked in. */
public class Memory {
    /** The secret draw of each collection. */
    public val draws: MutableMap<String, BigInteger> = LinkedHashMap()

    /** By round, in the order of answering. */
    public val memos: MutableMap<String, Memo> = LinkedHashMap()

    /** What this device has answered for so far, in nano-epsilon. */
    public val spentNano: BigInteger get() = memos.values.fold(BigInteger.ZERO) { sum, memo -> sum + memo.epsilonNano }

    internal fun copy(): Memory = Memory().also {
        it.draws.putAll(draws)
        it.memos.putAll(memos)
    }
}

/** Where a device keeps its memories; one store may serve several datasets. */
public interface Store {
    /** A copy of the memory; an empty one for a dataset not seen before. Throws StoreUnusable. */
    public fun read(datasetId: String): Memory

    /**
     * Hand the memory to `change`, alone, and make what it did to it last.
     *
     * Returns when the change is durable; if `change` throws, nothing changes. Throws StoreUnusable.
     */
    public fun <T> change(datasetId: String, change: (Memory) -> T): T
}

/** Forgets when the process ends: for tests, and for devices that answer once and go. */
public class MemoryStore : Store {
    private val memories = HashMap<String, Memory>()

    override fun read(datasetId: String): Memory = synchronized(memories) { memories[datasetId]?.copy() ?: Memory() }

    override fun <T> change(datasetId: String, change: (Memory) -> T): T = synchronized(memories) {
        val memory = read(datasetId)
        change(memory).also { memories[datasetId] = memory }
    }
}

// ---- as it is stored: {"version", "datasets", "sha256" of the datasets' canonical JSON} ----

internal fun packed(memories: Map<String, Memory>): String {
    val datasets = memories.mapValues { (_, memory) ->
        mapOf(
            "draws" to memory.draws.mapValues { it.value.toString() },
            "rounds" to memory.memos.values.map(::toWire),
        )
    }
    return canonical(mapOf("version" to STORE_VERSION, "datasets" to datasets, "sha256" to sha256(canonical(datasets))))
}

/** Throws NotJson, InvalidSpec or another RuntimeException for anything that `packed` did not write. */
internal fun unpacked(text: String): MutableMap<String, Memory> {
    val document = asObject(readJson(text), "a memory")
    val datasets = asObject(document["datasets"], "datasets")
    check(document["version"] == JsonNumber(STORE_VERSION.toString())) { "another version" }
    check(document["sha256"] == sha256(canonical(datasets))) { "not as it was written" }
    val memories = LinkedHashMap<String, Memory>()
    for ((datasetId, stored) in datasets) memories[datasetId as String] = memory(asObject(stored, "a dataset"))
    return memories
}

private fun memory(wire: Map<*, *>): Memory {
    val memory = Memory()
    for ((collectionId, draw) in asObject(wire["draws"], "draws")) {
        memory.draws[collectionId as String] = decimalWord(draw, "a draw", BigInteger.ZERO, WORD_SPAN - BigInteger.ONE)
    }
    for (stored in wire["rounds"] as List<*>) memo(asObject(stored, "a memo")).let { memory.memos[it.roundId] = it }
    return memory
}

private fun toWire(memo: Memo): Map<String, Any?> = mapOf(
    "round_id" to memo.roundId,
    "collection_id" to memo.collectionId,
    "epsilon_nano" to memo.epsilonNano.toString(),
    "spec_hash" to memo.specHash,
    "state" to memo.state.name.lowercase(),
    "report_id" to memo.reportId,
    "slot" to memo.slot,
    "value" to memo.value,
)

private fun memo(wire: Map<*, *>): Memo {
    val memo = Memo(
        roundId = wire["round_id"] as String,
        collectionId = wire["collection_id"] as String,
        epsilonNano = decimalWord(wire["epsilon_nano"], "a cost", BigInteger.ZERO, WORD_SPAN),
        specHash = wire["spec_hash"] as String,
        state = MemoState.valueOf((wire["state"] as String).uppercase()),
        reportId = wire["report_id"] as String,
        slot = (wire["slot"] as JsonNumber?)?.text?.toLong(),
        value = wire["value"] as String?,
    )
    check((memo.state == MemoState.PENDING) == (memo.value != null && memo.slot != null)) { "not a memo" }
    return memo
}
