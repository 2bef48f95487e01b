/** What a round publishes: everything a device needs to answer it, the same bytes for every device. */
package sfumato.device

import java.math.BigInteger

internal const val SPEC_VERSION = "1"
private const val MAX_NAME = 64

/** One feature of a record, with its public bounds in its own unit. */
public data class Feature(val name: String, val lower: Double, val upper: Double, val unit: String = "")

/** A record's values, in the features' units: in the features' order, or by their names. */
public sealed interface PersonRecord

/** Values in the features' order. */
public class InOrder(public vararg val values: Double) : PersonRecord

/** Values by the features' names. */
public class ByName(public val values: Map<String, Double>) : PersonRecord

internal class RoundSpec(
    val features: List<Feature>,
    val encoding: Encoding,
    val mechanism: Mechanism,
    private val lo: BigInteger,
    private val hi: BigInteger,
) {
    /** Whether a device with this draw answers. */
    fun asks(draw: BigInteger): Boolean = draw >= lo && draw < hi
}

/** Read a round spec; throws InvalidSpec for one this version cannot answer. */
internal fun readRoundSpec(value: Any?): RoundSpec {
    val wire = asObject(value, "a round spec")
    check(wire["version"] == JsonNumber(SPEC_VERSION)) { "this version answers round specs of version $SPEC_VERSION" }
    onlyKeys(wire, "RoundSpec", listOf("version", "features", "encoding", "mechanism", "draw"))
    val features = items(wire["features"], "features", 1, MAX_FEATURES, ::readFeature)
    check(features.map { it.name }.toSet().size == features.size) { "feature names differ from one another" }
    val encoding = tagged(ENCODINGS, "encoding", wire["encoding"])
    val mechanism = tagged(MECHANISMS, "mechanism", wire["mechanism"])
    check(features.size == encoding.nFeatures) { "the encoding is for another number of features" }
    val lattice = encoding.steps?.let { Pair(encoding.nFeatures, it) }
    check(lattice == mechanism.lattice) { "a lattice and discrete_laplace over it go together" }
    check(mechanism.nSymbols == encoding.nSymbols) { "the mechanism is for another number of symbols" }
    val (lo, hi) = readDraw(wire["draw"])
    return RoundSpec(features, encoding, mechanism, lo, hi)
}

private fun <T> tagged(kinds: Map<String, (Map<*, *>) -> T>, what: String, value: Any?): T {
    val wire = asObject(value, "the $what")
    val read = kinds[wire["type"] as? String] ?: throw InvalidSpec("unknown $what; this version knows ${kinds.keys.joinToString()}")
    return read(wire)
}

private fun readFeature(value: Any?): Feature {
    val wire = asObject(value, "a feature")
    onlyKeys(wire, "Feature", listOf("name", "lower", "upper"), listOf("unit"))
    val name = wire["name"] as? String ?: throw InvalidSpec("a feature needs a name")
    val unit = wire.getOrDefault("unit", "") as? String ?: throw InvalidSpec("a unit is text")
    check(name.length in 1..MAX_NAME) { "a feature needs a name of 1 to $MAX_NAME characters" }
    check(unit.length <= MAX_NAME) { "a unit has at most $MAX_NAME characters" }
    val lower = finite(wire["lower"], "lower")
    val upper = finite(wire["upper"], "upper")
    check(lower < upper) { "$name: lower must lie below upper" }
    check((upper - lower).isFinite()) { "$name: bounds lie too far apart" }
    return Feature(name, lower, upper, unit)
}

private fun readDraw(value: Any?): Pair<BigInteger, BigInteger> {
    val wire = asObject(value, "a draw")
    onlyKeys(wire, "Draw", listOf("lo", "hi"))
    val lo = decimalWord(wire["lo"], "lo", BigInteger.ZERO, WORD_SPAN)
    val hi = decimalWord(wire["hi"], "hi", BigInteger.ZERO, WORD_SPAN)
    check(lo < hi) { "a draw interval needs 0 <= lo < hi <= 2^64" }
    return Pair(lo, hi)
}

/** One record clipped to the bounds and scaled to [0, 1] per feature; throws InvalidPoint, which quotes no value. */
internal fun scale(features: List<Feature>, record: PersonRecord): DoubleArray {
    val values = inOrder(features, record)
    return DoubleArray(features.size) { place ->
        val (name, lower, upper) = features[place]
        val value = values[place]
        if (!value.isFinite()) throw InvalidPoint("$name is not finite")
        (minOf(maxOf(value, lower), upper) - lower) / (upper - lower)
    }
}

private fun inOrder(features: List<Feature>, record: PersonRecord): DoubleArray = when (record) {
    is InOrder -> {
        if (record.values.size != features.size) throw InvalidPoint("a record has ${features.size} features")
        record.values
    }
    is ByName -> {
        val names = features.map { it.name }
        if (record.values.keys != names.toSet()) throw InvalidPoint("a record has the features ${names.joinToString()}")
        DoubleArray(names.size) { record.values.getValue(names[it]) }
    }
}

/** What a device makes of one record: the public slot and the perturbed value. */
internal class Perturbed(val slot: Long, val value: ByteArray)

/** Encode and perturb one record. Words drawn: the slot, then the mechanism's. */
internal fun perturb(spec: RoundSpec, record: PersonRecord, entropy: Entropy): Perturbed {
    val point = scale(spec.features, record)
    val slot = entropy.below(spec.encoding.nSlots)
    return Perturbed(slot, spec.mechanism.perturb(spec.encoding.symbol(point, slot), entropy))
}
