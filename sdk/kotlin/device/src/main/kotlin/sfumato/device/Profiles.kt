/** Profile rounds: the cluster of a record among published clusters, together with the category of one attribute. */
package sfumato.device

private const val MAX_ATTRIBUTES = 64
private const val MAX_VALUES = 256
private const val MAX_PROFILE_SYMBOLS = 4096L
private const val MAX_MAP_RUNS = 1 shl 15
private const val MAX_TEXT = 64

/**
 * An attribute of a round: a public vocabulary, or numbers with public bins.
 *
 * `category` returns the place of a value among the categories. It throws InvalidPoint, without the value, if it is refused.
 */
internal class Attribute(
    val name: String,
    val isNumeric: Boolean,
    val nCategories: Int,
    /** The members that decide on the category of a value. */
    val declaration: List<Any>,
    val category: (value: Any?) -> Int,
)

/**
 * An attribute as a dataset declares it. A device with it refuses rounds that declare an attribute of this name otherwise.
 */
public class DeclaredAttribute internal constructor(internal val attribute: Attribute) {
    public val name: String get() = attribute.name

    public companion object {
        /** An attribute with a public vocabulary. `unknown` is refuse or other, and `missing` is refuse or category. */
        public fun categorical(
            name: String,
            values: List<String>,
            unknown: String = "refuse",
            missing: String = "refuse",
        ): DeclaredAttribute = of(mapOf("kind" to "categorical", "name" to name, "values" to values, "unknown" to unknown, "missing" to missing))

        /** Numbers with public edges of bins. `missing` is refuse or category. */
        public fun numeric(name: String, bins: List<Double>, missing: String = "refuse"): DeclaredAttribute =
            of(mapOf("kind" to "numeric", "name" to name, "bins" to bins.map { JsonNumber(it.toString()) }, "missing" to missing))

        private fun of(wire: Map<String, Any>): DeclaredAttribute = DeclaredAttribute(readAttribute(wire))
    }
}

/** Return a text of 1 to 64 characters. */
private fun text(value: Any?, name: String): String {
    val found = value as? String ?: throw InvalidSpec("$name must be text")
    check(found.length in 1..MAX_TEXT) { "$name must have 1 to $MAX_TEXT characters" }
    return found
}

private fun choice(value: Any?, name: String, choices: List<String>): String {
    check(value in choices) { "$name must be one of ${choices.joinToString()}" }
    return value as String
}

internal fun readAttribute(value: Any?): Attribute {
    val wire = asObject(value, "an attribute")
    val kind = choice(wire["kind"], "the kind of an attribute", listOf("categorical", "numeric"))
    return if (kind == "categorical") readCategorical(wire) else readNumeric(wire)
}

/** Read an attribute with a vocabulary. Values are compared by their code units, without a normal form. */
private fun readCategorical(wire: Map<*, *>): Attribute {
    checkKeys(wire, "an attribute", listOf("name", "kind", "values"), listOf("unknown", "missing", "use", "weight"))
    val name = text(wire["name"], "the name of an attribute")
    val values = list(wire["values"], "values", 2, MAX_VALUES) { text(it, "$name: a value") }
    val takesOther = choice(wire.getOrDefault("unknown", "refuse"), "$name: unknown", listOf("refuse", "other")) == "other"
    val takesMissing = readMissing(wire, name)
    val categories = values + listOf("other").filter { takesOther } + listOf("missing").filter { takesMissing }
    val nCategories = categories.size
    check(categories.toSet().size == nCategories) {
        "$name: values must be unique, and differ from the categories other and missing if these are used"
    }
    return Attribute(name, false, nCategories, listOf(values, takesOther, takesMissing)) { value ->
        if (isMissing(value)) return@Attribute missingCategory(name, takesMissing, nCategories)
        if (value !is String) throw InvalidPoint("$name must be text, or missing")
        val place = values.indexOf(value)
        if (place == -1 && !takesOther) throw InvalidPoint("$name must be one of its declared values")
        if (place == -1) values.size else place
    }
}

/** Read a numeric attribute. A value belongs to the bin that starts at or below it; beyond the edges, to the nearest bin. */
private fun readNumeric(wire: Map<*, *>): Attribute {
    checkKeys(wire, "an attribute", listOf("name", "kind", "bins"), listOf("missing", "use", "unit"))
    val name = text(wire["name"], "the name of an attribute")
    val bins = list(wire["bins"], "bins", 3, MAX_VALUES + 1) { finite(it, "$name: an edge") }
    check(bins.zipWithNext().all { (low, high) -> low < high }) { "$name: the edges must be ascending" }
    val takesMissing = readMissing(wire, name)
    val nCategories = bins.size - 1 + if (takesMissing) 1 else 0
    val inner = bins.subList(1, bins.size - 1)
    return Attribute(name, true, nCategories, listOf(bins, takesMissing)) { value ->
        if (isMissing(value)) return@Attribute missingCategory(name, takesMissing, nCategories)
        val number = (value as? Number)?.toDouble()
        if (number == null || !number.isFinite()) throw InvalidPoint("$name must be a finite number")
        inner.count { it <= number }
    }
}

private fun readMissing(wire: Map<*, *>, name: String): Boolean =
    choice(wire.getOrDefault("missing", "refuse"), "$name: missing", listOf("refuse", "category")) == "category"

private fun isMissing(value: Any?): Boolean = value == null || (value is Number && value.toDouble().isNaN())

private fun missingCategory(name: String, takesMissing: Boolean, nCategories: Int): Int {
    if (!takesMissing) throw InvalidPoint("$name is missing: give a value")
    return nCategories - 1
}

/** Read a profile: clusters as centroids, or as runs of equal labels of the cells of a grid, and the attributes. */
internal fun readProfile(wire: Map<*, *>): Encoding {
    checkKeys(wire, "profile", listOf("type", "attributes"), listOf("centroids", "cells", "starts", "labels"))
    val attributes = list(wire["attributes"], "attributes", 1, MAX_ATTRIBUTES, ::readAttribute)
    check(attributes.map { it.name }.toSet().size == attributes.size) { "the attributes of a profile must have unique names" }
    val (centroids, cells, starts, labels) = listOf("centroids", "cells", "starts", "labels").map { name ->
        wire.getOrDefault(name, emptyList<Any?>()) as? List<*> ?: throw InvalidSpec("the clusters of a profile must be lists")
    }
    val hasMap = centroids.isEmpty()
    check(listOf(cells, starts, labels).all { it.isNotEmpty() == hasMap }) {
        "a profile must have either centroids, or cells with starts and labels"
    }
    val clusters = if (hasMap) readMap(cells, starts, labels) else readNearest(centroids)
    val nValues = attributes.maxOf { it.nCategories }.toLong()
    val nSymbols = clusters.nClusters * nValues
    check(nSymbols <= MAX_PROFILE_SYMBOLS) { "clusters times categories must be at most $MAX_PROFILE_SYMBOLS" }
    val suits = { circles: List<Int> -> hasMap || circles.isEmpty() }
    return Encoding(clusters.nFeatures, attributes.size.toLong(), nSymbols, attributes = attributes, suits = suits) { point, slot, codes ->
        longArrayOf(clusters.cluster(point) * nValues + codes[slot.toInt()])
    }
}

private class Clusters(val nFeatures: Int, val nClusters: Long, val cluster: (point: DoubleArray) -> Long)

private fun readNearest(wire: List<*>): Clusters {
    val centroids = readCentroids(wire)
    val nFeatures = centroids[0].size
    return Clusters(nFeatures, centroids.size.toLong()) { findNearest(centroids, it, nFeatures).first.toLong() }
}

private fun readMap(wireCells: List<*>, wireStarts: List<*>, wireLabels: List<*>): Clusters {
    val cells = list(wireCells, "cells", 1, MAX_FEATURES) { integer(it, "cells", 1, MAX_SYMBOLS) }
    val nCells = cells.fold(1L) { product, n -> minOf(product * n, MAX_SYMBOLS + 1) } // capped to avoid overflow
    check(nCells <= MAX_SYMBOLS) { "a map must have at most $MAX_SYMBOLS cells" }
    val starts = list(wireStarts, "starts", 1, MAX_MAP_RUNS) { integer(it, "starts", 0, nCells - 1) }.toLongArray()
    val labels = list(wireLabels, "labels", 1, MAX_MAP_RUNS) { integer(it, "labels", 0, MAX_PROFILE_SYMBOLS - 1) }
    check(starts.size == labels.size) { "a map must have a label for each start" }
    check(starts[0] == 0L && starts.toList().zipWithNext().all { (one, next) -> one < next }) { "the starts of a map must ascend from 0" }
    return Clusters(cells.size, labels.max() + 1) { point ->
        val place = cells.foldIndexed(0L) { feature, index, n -> index * n + cellIndex(point[feature], n) }
        val found = starts.binarySearch(place)
        labels[if (found >= 0) found else -found - 2]
    }
}
