/** Round specs and records. A spec contains everything that a device needs to send a report. All devices receive the same bytes. */
package sfumato.device

import java.math.BigInteger
import kotlin.math.abs
import kotlin.math.floor

internal const val SPEC_VERSION = "1"
private const val MAX_NAME = 64

/**
 * A feature of a record with its public bounds, in the unit of the feature.
 *
 * The values of a periodic feature lie on a circle, as longitudes and hours of the day. The bounds are one period.
 *
 * `coordinate` is the part of a place on Earth that the feature is, in degrees: `longitude` or `latitude`. A latitude is scaled
 * by its sine, and a longitude is moved by whole turns towards the bounds.
 */
public data class Feature(
    val name: String,
    val lower: Double,
    val upper: Double,
    val unit: String = "",
    val periodic: Boolean = false,
    val coordinate: String? = null,
)

/** The values of a record in the units of the features: OrderedRecord, NamedRecord or PositionRecord. */
public sealed interface PersonRecord

/** A record with values in the order of the features. */
public class OrderedRecord(public vararg val values: Double) : PersonRecord

/**
 * A record with values by feature name.
 *
 * `attributes` has the values of the attributes that the device reports: text, numbers, or null for a missing value.
 */
public class NamedRecord(
    public val values: Map<String, Double>,
    public val attributes: Map<String, Any?> = emptyMap(),
) : PersonRecord {
    internal fun without(names: Collection<String>): NamedRecord = NamedRecord(values - names.toSet(), attributes - names.toSet())
}

/**
 * A position in degrees, as an Android `Location` has it, for a dataset of one latitude and one longitude.
 *
 * The features are declared as such, or have the names `latitude` or `lat`, and `longitude`, `lon`, `lng` or `long`, in any
 * case. A longitude outside of
 * the bounds is turned by 360 degrees if it is inside of them afterwards, as 179 west in bounds from 170 to 190.
 */
public class PositionRecord(public val latitude: Double, public val longitude: Double) : PersonRecord

private val LATITUDES = setOf("latitude", "lat")
private val LONGITUDES = setOf("longitude", "lon", "lng", "long")

/** The published description of a round. */
internal class RoundSpec(
    val features: List<Feature>,
    val encoding: Encoding,
    val mechanism: Mechanism,
    /** Whether a record outside of the bounds is reported as outside. Otherwise its values are moved to the bounds. */
    val countsOutside: Boolean,
    private val lo: BigInteger,
    private val hi: BigInteger,
) {
    /** The attributes that the record of the round has in addition to its features. */
    val attributes: List<Attribute> = encoding.attributes.filter { each -> features.none { it.name == each.name } }

    /** Return whether the round selects a device with this participation draw. */
    fun selects(draw: BigInteger): Boolean = draw >= lo && draw < hi
}

/** Validate a round spec. Throw InvalidSpec if it is invalid or this version does not support it. */
internal fun readRoundSpec(value: Any?): RoundSpec {
    val wire = asObject(value, "a round spec")
    check(wire["version"] == JsonNumber(SPEC_VERSION)) { "unsupported version of a round spec: expected $SPEC_VERSION" }
    checkKeys(wire, "RoundSpec", listOf("version", "features", "encoding", "mechanism", "participation"), listOf("out_of_bounds"))
    val features = list(wire["features"], "features", 1, MAX_FEATURES, ::readFeature)
    check(features.map { it.name }.toSet().size == features.size) { "feature names must be different" }
    val encoding = readTagged(ENCODINGS, "encoding", wire["encoding"])
    val mechanism = readTagged(MECHANISMS, "mechanism", wire["mechanism"])
    check(features.size == encoding.nFeatures) { "the number of features of the encoding must match the spec" }
    val circles = features.indices.filter { features[it].periodic }
    check(encoding.suits(circles)) {
        "the encoding must suit the periodic features: a grid, a shifted grid with these circles, phases of whole turns, or a profile of cells"
    }
    for (each in encoding.attributes) {
        val feature = features.firstOrNull { it.name == each.name } ?: continue
        check(each.isNumeric && !feature.periodic) {
            "an attribute with the name of a feature must be numeric, and the feature must not be periodic"
        }
    }
    val lattice = encoding.steps?.let { Pair(encoding.nFeatures, it) }
    check(lattice == mechanism.lattice) { "a lattice encoding requires discrete_laplace with the same n_features and steps, and vice versa" }
    val outOfBounds = if ("out_of_bounds" in wire) wire["out_of_bounds"] else "clip"
    check(outOfBounds == "clip" || outOfBounds == "count") { "out_of_bounds must be count or clip" }
    val countsOutside = outOfBounds == "count"
    val nSymbols = encoding.nSymbols?.let { if (countsOutside && encoding.addsSymbol) it + 1 else it }
    check(mechanism.nSymbols == nSymbols) { "the number of symbols of the mechanism must match the encoding" }
    check(mechanism.lattice == null || mechanism.mark > 0 == countsOutside) {
        "vectors must have a mark if and only if the round counts records outside"
    }
    val (lo, hi) = readParticipation(wire["participation"])
    return RoundSpec(features, encoding, mechanism, countsOutside, lo, hi)
}

private fun <T> readTagged(kinds: Map<String, (Map<*, *>) -> T>, name: String, value: Any?): T {
    val wire = asObject(value, "the $name")
    val read = kinds[wire["type"] as? String] ?: throw InvalidSpec("unknown $name type; this version supports ${kinds.keys.joinToString()}")
    return read(wire)
}

internal fun readFeature(value: Any?): Feature {
    val wire = asObject(value, "a feature")
    checkKeys(wire, "Feature", listOf("name", "lower", "upper"), listOf("unit", "periodic", "coordinate"))
    val name = wire["name"] as? String ?: throw InvalidSpec("the name of a feature must be text")
    val unit = wire.getOrDefault("unit", "") as? String ?: throw InvalidSpec("the unit of a feature must be text")
    check(name.length in 1..MAX_NAME) { "the name of a feature must have 1 to $MAX_NAME characters" }
    check(unit.length <= MAX_NAME) { "$name: the unit may have at most $MAX_NAME characters" }
    val lower = finite(wire["lower"], "$name: lower")
    val upper = finite(wire["upper"], "$name: upper")
    check(lower < upper) { "$name: lower must be less than upper" }
    check((upper - lower).isFinite()) { "$name: the distance of the bounds must be finite" }
    val periodic = wire.getOrDefault("periodic", false) as? Boolean ?: throw InvalidSpec("$name: periodic must be true or false")
    val coordinate = if ("coordinate" in wire) wire["coordinate"] as? String ?: "" else null
    check(coordinate == null || coordinate in LIMITS) { "$name: coordinate must be longitude or latitude" }
    if (coordinate == LATITUDE) {
        check(!periodic && lower >= -90 && upper <= 90) { "$name: the bounds of a latitude must be from -90 to 90 degrees" }
    }
    if (coordinate == LONGITUDE) {
        check(lower >= -360 && upper <= 540 && upper - lower <= 360) { "$name: the bounds of a longitude must be at most 360 degrees apart" }
        check(periodic == (upper - lower == 360.0)) { "$name: a longitude must be periodic if its bounds are 360 degrees apart" }
    }
    return Feature(name, lower, upper, unit, periodic, coordinate)
}

private fun readParticipation(value: Any?): Pair<BigInteger, BigInteger> {
    val wire = asObject(value, "the participation")
    checkKeys(wire, "Participation", listOf("lo", "hi"))
    val lo = decimalWord(wire["lo"], "lo", BigInteger.ZERO, WORD_SPAN)
    val hi = decimalWord(wire["hi"], "hi", BigInteger.ZERO, WORD_SPAN)
    check(lo < hi) { "the participation must satisfy 0 <= lo < hi <= 2^64" }
    return Pair(lo, hi)
}

private const val LATITUDE = "latitude"
private const val LONGITUDE = "longitude"
private val LIMITS = mapOf(LATITUDE to 90, LONGITUDE to 360) // largest degrees that are a place

// Coefficients of sin(90° x) in odd powers of x, ascending. All devices use them, because the sine of a platform may differ.
private val SINE_COEFFICIENTS = doubleArrayOf(
    1.5707963267948966,
    -0.6459640975062463,
    0.07969262624616703,
    -0.004681754135318688,
    0.00016044118478735983,
    -3.598843235212085e-06,
    5.692172921967927e-08,
    -6.688035109811468e-10,
    6.0669357311061955e-12,
    -4.377065467313742e-14,
    2.571422892860474e-16,
)

/** Return the sine of a latitude in [-90, 90] degrees. The order of operations is fixed. */
private fun sine(latitude: Double): Double {
    val share = latitude / 90
    val square = share * share
    return SINE_COEFFICIENTS.foldRight(0.0) { coefficient, total -> total * square + coefficient } * share
}

private const val MOST_TURNS = 4_503_599_627_370_496.0 // 2^52: doubles beyond it have no fraction

/**
 * Clip a record to the bounds and scale each feature to [0, 1]. Move the value of a periodic feature by whole periods, and
 * scale the latitude of a place by its sine.
 * Throw InvalidPoint, without values, if the record is invalid.
 */
internal fun scale(features: List<Feature>, record: PersonRecord): DoubleArray {
    val values = readValues(features, record)
    return DoubleArray(features.size) { index ->
        val (_, lower, upper) = features[index]
        if (features[index].coordinate == LATITUDE) {
            val (low, high) = Pair(sine(lower), sine(upper))
            return@DoubleArray (minOf(maxOf(sine(values[index]), low), high) - low) / (high - low)
        }
        if (features[index].periodic) {
            val turns = minOf(maxOf((values[index] - lower) / (upper - lower), -MOST_TURNS), MOST_TURNS)
            return@DoubleArray turns - floor(turns)
        }
        (minOf(maxOf(values[index], lower), upper) - lower) / (upper - lower)
    }
}

/** The result of `Device.check` for a valid record. `outside` names the features whose value lies outside their bounds. */
public class RecordCheck internal constructor(public val outside: List<String>)

/** Check a record. Throw InvalidPoint as `scale` does. */
internal fun checkRecord(features: List<Feature>, record: PersonRecord): RecordCheck {
    val values = readValues(features, record)
    return RecordCheck(features.filterIndexed { index, each -> values[index] !in each.lower..each.upper }.map { it.name })
}

/** Return the finite values of a record in the order of the features. The longitude of a place is near the middle of its bounds. */
private fun readValues(features: List<Feature>, record: PersonRecord): DoubleArray {
    val values = orderValues(features, record)
    return DoubleArray(values.size) { index ->
        val (name, lower, upper) = features[index]
        val value = values[index]
        if (!value.isFinite()) throw InvalidPoint("$name must be a finite number")
        val limit = LIMITS[features[index].coordinate] ?: return@DoubleArray value
        if (abs(value) > limit) {
            throw InvalidPoint("$name must be from -$limit to $limit degrees: latitude and longitude may be in the wrong order")
        }
        if (features[index].coordinate == LATITUDE) value else value - 360 * floor((value - ((lower + upper) / 2 - 180)) / 360)
    }
}

/** Return the values of a record in the order of the features. */
private fun orderValues(features: List<Feature>, record: PersonRecord): DoubleArray = when (record) {
    is OrderedRecord -> {
        if (record.values.size != features.size) throw InvalidPoint("a record must have ${features.size} values")
        record.values
    }
    is NamedRecord -> {
        val names = features.map { it.name }
        if (record.values.keys != names.toSet() || record.attributes.isNotEmpty()) throw InvalidPoint("a record must have the features ${names.joinToString()}")
        DoubleArray(names.size) { record.values.getValue(names[it]) }
    }
    is PositionRecord -> orderPosition(features, record)
}

/** Return the degrees of a position in the order of the features. */
private fun orderPosition(features: List<Feature>, position: PositionRecord): DoubleArray {
    val (north, east) = listOf(LATITUDES, LONGITUDES).map { names -> features.indexOfFirst { (it.coordinate ?: it.name.trim().lowercase()) in names } }
    if (features.size != 2 || north == -1 || east == -1) {
        throw InvalidPoint("a position needs a dataset with the features latitude and longitude alone: pass the values by feature name")
    }
    val longitudes = listOf(position.longitude, position.longitude + 360, position.longitude - 360)
    val (_, lower, upper) = features[east]
    val longitude = longitudes.firstOrNull { it in lower..upper } ?: position.longitude
    return if (north == 0) doubleArrayOf(position.latitude, longitude) else doubleArrayOf(longitude, position.latitude)
}

/** The public slot and the perturbed value of a report. */
internal class PerturbedValue(val slot: Long, val value: ByteArray)

/** The part of a record with the features, and the category of each attribute of the round. */
internal class ReadRecord(val point: PersonRecord, val codes: List<Int>)

/**
 * Return the part of a record with the features, and its values by name if there are attributes. Throw InvalidPoint, without
 * values, if there are attributes and a name is missing or unknown.
 */
internal fun splitRecord(features: List<Feature>, attributes: List<Attribute>, record: PersonRecord): Pair<PersonRecord, Map<String, Any?>> {
    if (attributes.isEmpty()) return record to emptyMap()
    val named = record as? NamedRecord ?: throw InvalidPoint("a record with attributes must have names")
    val given = named.values + named.attributes
    val own = attributes.map { it.name }
    val known = features.map { it.name } + own
    if (given.keys != known.toSet() || given.size != named.values.size + named.attributes.size) {
        throw InvalidPoint("a record must have the features and attributes ${known.joinToString()}")
    }
    return NamedRecord(named.values - own.toSet()) to given
}

/**
 * Read a record for a round. All attributes are read before the slot is drawn, so that a refusal does not depend on the slot.
 * Throw InvalidPoint, without values, if the record is invalid.
 */
internal fun readRecord(spec: RoundSpec, record: PersonRecord): ReadRecord {
    if (spec.encoding.attributes.isEmpty()) return ReadRecord(record, emptyList())
    val names = spec.features.map { it.name }
    val (point, given) = splitRecord(spec.features, spec.attributes, record)
    val values = readValues(spec.features, point)
    val codes = spec.encoding.attributes.map { each ->
        val place = names.indexOf(each.name)
        each.category(if (place == -1) given[each.name] else values[place])
    }
    return ReadRecord(OrderedRecord(*values), codes)
}

/** Return the names of the features of a record for a round with a value outside of their bounds. Throw InvalidPoint. */
internal fun findOutside(spec: RoundSpec, record: PersonRecord): List<String> = checkRecord(spec.features, readRecord(spec, record).point).outside

/** Encode and perturb a record. Draw the slot first, then the words of the mechanism. */
internal fun perturb(spec: RoundSpec, record: PersonRecord, entropy: Entropy): PerturbedValue {
    findOutside(spec, record) // an invalid record uses no word
    val slot = entropy.drawBelow(spec.encoding.nSlots)
    return PerturbedValue(slot, spec.mechanism.perturb(encode(spec, record, slot, entropy), entropy))
}

/** Return the symbol of a record. Words are drawn only outside of the bounds in a round of phases or signs: its symbol. */
private fun encode(spec: RoundSpec, record: PersonRecord, slot: Long, entropy: Entropy): LongArray {
    val (nSymbols, steps) = Pair(spec.encoding.nSymbols, spec.encoding.steps)
    val read = readRecord(spec, record)
    if (!spec.countsOutside || checkRecord(spec.features, read.point).outside.isEmpty()) {
        val own = spec.encoding.symbol(scale(spec.features, read.point), slot, read.codes)
        return if (spec.countsOutside && steps != null) own + 0L else own
    }
    if (steps != null || nSymbols == null) return LongArray(spec.features.size) { (steps ?: 0) / 2 } + spec.mechanism.mark
    return longArrayOf(if (spec.encoding.addsSymbol) nSymbols else entropy.drawBelow(nSymbols))
}
