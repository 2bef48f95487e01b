/** Encodings: deterministic public functions that turn a point in [0, 1]^d and a slot into a symbol. */
package sfumato.device

import kotlin.math.floor

internal const val MAX_FEATURES = 64
internal const val MAX_SYMBOLS = 1L shl 20
internal const val MAX_STEPS = 1L shl 16 // lattice units across a feature's range
private const val MAX_TREE_CELLS = 1 shl 16
private const val MAX_TREE_BITS = 48 // bits of a cell position

// Projections are integers. With 64 features each sum is below 2^40 and each product below 2^53.
private const val LATTICE = 1L shl 20
private const val MAX_WEIGHT = 1L shl 14
private const val TURN = 1L shl 30 // projection units per full turn of a phase
private const val FULL_TURN = TURN / LATTICE // weight of a full turn across the range of a feature
private const val MAX_WAVES = 1024
private const val MAX_PHASE_ATTRIBUTES = 4
private const val MAX_PHASE_CATEGORIES = 16 // with those of unknown and of missing values

/** A function that turns a point and a slot, the public part of a report, into a symbol: a number, or a vector for a lattice. */
internal class Encoding(
    val nFeatures: Int,
    val nSlots: Long,
    /** Number of symbols, or null for a lattice, where symbols are vectors. */
    val nSymbols: Long?,
    /** Lattice units across the range of a feature, or null for other encodings. */
    val steps: Long? = null,
    /**
     * Whether records outside of the bounds have a symbol of their own, the last one. Phases and signs are symmetric, so such
     * a record has a uniformly random one. Vectors have a mark.
     */
    val addsSymbol: Boolean = steps == null,
    /** Whether the encoding suits periodic features with these indices. Most encodings suit plain features alone. */
    val suits: (circles: List<Int>) -> Boolean = { it.isEmpty() },
    /** Attributes whose categories are part of the symbols. */
    val attributes: List<Attribute> = emptyList(),
    /** The symbol of a point under a slot. `codes` has the category of each attribute. */
    val symbol: (point: DoubleArray, slot: Long, codes: List<Int>) -> LongArray,
)

/** Readers of the encodings, by their `type` in JSON. */
internal val ENCODINGS: Map<String, (Map<*, *>) -> Encoding> = mapOf(
    "grid" to ::readGrid,
    "shifted_grid" to ::readShiftedGrid,
    "tree_grid" to ::readTreeGrid,
    "phase" to ::readPhase,
    "lattice" to ::readLattice,
    "nearest_centroid" to ::readNearestCentroid,
    "centroid_sign" to ::readCentroidSign,
    "profile" to ::readProfile,
)

/** Return the cell, 0 .. nCells-1, of a coordinate in [0, 1]. */
internal fun cellIndex(coordinate: Double, nCells: Long): Long = minOf(floor(coordinate * nCells).toLong(), nCells - 1)

/** Return base^exponent, or MAX_SYMBOLS + 1 if the power is larger than MAX_SYMBOLS. */
private fun power(base: Long, exponent: Int): Long {
    var product = 1L
    repeat(exponent) { product = minOf(product * base, MAX_SYMBOLS + 1) }
    return product
}

/** Read a grid encoding. The symbol is the cell index in row-major order; the last feature varies fastest. */
private fun readGrid(wire: Map<*, *>): Encoding {
    checkKeys(wire, "grid", listOf("type", "cells"))
    val cells = list(wire["cells"], "cells", 1, MAX_FEATURES) { integer(it, "cells", 1, MAX_SYMBOLS) }
    val nSymbols = cells.fold(1L) { product, n -> minOf(product * n, MAX_SYMBOLS + 1) } // capped to avoid overflow
    check(nSymbols in 2..MAX_SYMBOLS) { "a grid must have 2 to $MAX_SYMBOLS cells" }
    return Encoding(cells.size, 1, nSymbols, suits = { true }) { point, _, _ ->
        longArrayOf(cells.foldIndexed(0L) { feature, index, n -> index * n + cellIndex(point[feature], n) })
    }
}

/**
 * Read a shifted grid: a coarse grid with `shifts` public shifts per feature. The slot is the shift index in row-major order.
 *
 * A feature has `cells` coarse cells on a circle, and one more between bounds. With an attribute of V categories, the symbol is
 * V times the cell plus the category.
 */
private fun readShiftedGrid(wire: Map<*, *>): Encoding {
    checkKeys(wire, "shifted_grid", listOf("type", "n_features", "cells", "shifts"), listOf("circles", "attributes"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, 8).toInt()
    val cells = integer(wire["cells"], "cells", 1, 4096)
    val shifts = integer(wire["shifts"], "shifts", 1, 64)
    val places = wire.getOrDefault("circles", emptyList<Any?>()) as? List<*> ?: throw InvalidSpec("circles must be a list")
    val circles = places.map { integer(it, "circles", 0, nFeatures - 1L).toInt() }
    check(circles.zipWithNext().all { (one, next) -> one < next }) { "circles must be ascending" }
    check(circles.isEmpty() || cells >= 2) { "a circle must have at least 2 cells" }
    val along = LongArray(nFeatures) { if (it in circles) cells else cells + 1 }
    val attributes = list(wire.getOrDefault("attributes", emptyList<Any?>()), "attributes", 0, 1, ::readAttribute)
    check(attributes.none { it.isNumeric }) { "the attribute of a shifted grid must be categorical" }
    val nCategories = attributes.firstOrNull()?.nCategories?.toLong() ?: 1L
    val nSymbols = along.fold(nCategories) { product, n -> minOf(product * n, MAX_SYMBOLS + 1) } // capped to avoid overflow
    val nSlots = power(shifts, nFeatures)
    check(nSymbols <= MAX_SYMBOLS) { "a shifted grid may have at most $MAX_SYMBOLS symbols" }
    check(nSlots <= MAX_SYMBOLS) { "a shifted grid may have at most $MAX_SYMBOLS slots" }
    return Encoding(nFeatures, nSlots, nSymbols, suits = { it == circles }, attributes = attributes) { point, slot, codes ->
        var index = 0L
        for (feature in 0 until nFeatures) {
            val shift = slot / power(shifts, nFeatures - 1 - feature) % shifts
            index = index * along[feature] + (cellIndex(point[feature], cells * shifts) + shift) / shifts % along[feature]
        }
        longArrayOf(index * nCategories + (codes.firstOrNull() ?: 0))
    }
}

/** Read a tree grid: dyadic cells of different levels that tile the bounds, in Z-order. */
private fun readTreeGrid(wire: Map<*, *>): Encoding {
    checkKeys(wire, "tree_grid", listOf("type", "n_features", "levels"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, 8).toInt()
    val most = (MAX_TREE_BITS / nFeatures).toLong()
    val levels = list(wire["levels"], "levels", 2, MAX_TREE_CELLS) { integer(it, "levels", 0, most).toInt() }
    val depth = levels.max()
    val whole = 1L shl (depth * nFeatures)
    val starts = LongArray(levels.size) // Z-order position where each cell starts, in cells of the deepest level
    var position = 0L
    levels.forEachIndexed { index, level ->
        val size = 1L shl ((depth - level) * nFeatures)
        check(position % size == 0L && position + size <= whole) { "the cells of a tree grid must tile the bounds" }
        starts[index] = position
        position += size
    }
    check(position == whole) { "the cells of a tree grid must tile the bounds" }
    return Encoding(nFeatures, 1, levels.size.toLong()) { point, _, _ ->
        val finest = point.map { cellIndex(it, 1L shl depth) }
        val found = starts.binarySearch(zOrderPosition(finest, depth))
        longArrayOf((if (found >= 0) found else -found - 2).toLong())
    }
}

/** Return the Z-order position of a cell of the deepest level: the interleaved bits of its indices, first feature first. */
private fun zOrderPosition(index: List<Long>, depth: Int): Long {
    var position = 0L
    for (bit in depth - 1 downTo 0) {
        for (part in index) position = position * 2 + (part shr bit and 1)
    }
    return position
}

private fun readWeights(wire: Any?, most: Int): List<List<Long>> {
    val rows = list(wire, "weights", 1, most) { row ->
        list(row, "a row of weights", 1, MAX_FEATURES) { integer(it, "weights", -MAX_WEIGHT, MAX_WEIGHT) }
    }
    check(rows.all { it.size == rows[0].size }) { "all rows of weights must have the same length" }
    check(rows.any { row -> row.any { it != 0L } }) { "the weights must not all be zero" }
    return rows
}

/** Return the weighted sum of the coordinates, each scaled to an integer in 0 .. 2^20-1. Its size is below 2^40. */
private fun project(weights: List<Long>, point: DoubleArray): Long =
    weights.indices.sumOf { feature -> weights[feature] * cellIndex(point[feature], LATTICE) }

/** Read the attributes of phases. They are few and have a vocabulary, because each category needs waves. */
private fun readPhaseAttributes(wire: Any?): List<Attribute> {
    val attributes = list(wire, "attributes", 0, MAX_PHASE_ATTRIBUTES, ::readAttribute)
    check(attributes.map { it.name }.toSet().size == attributes.size) { "the attributes of phases must have unique names" }
    check(attributes.none { it.isNumeric }) { "the attributes of phases must be categorical" }
    check(attributes.all { it.nCategories <= MAX_PHASE_CATEGORIES }) {
        "an attribute of phases may have at most $MAX_PHASE_CATEGORIES categories"
    }
    return attributes
}

/** Read the characters of each wave, per attribute: an integer below the number of categories. Without attributes, none. */
private fun readCharacters(wire: Any?, attributes: List<Attribute>, weights: List<List<Long>>): List<List<Long>> {
    val nRows = if (attributes.isEmpty()) 0 else weights.size
    val rows = list(wire, "characters", nRows, nRows) { row ->
        list(row, "a row of characters", attributes.size, attributes.size) { it }
            .mapIndexed { place, character -> integer(character, "characters", 0, attributes[place].nCategories - 1L) }
    }
    check(rows.indices.all { wave -> rows[wave].all { it == 0L } || weights[wave].any { it != 0L } }) {
        "a wave of weight zero must have characters of zero"
    }
    check(attributes.indices.all { place -> rows.any { it[place] != 0L } }) { "each attribute must be in a wave" }
    return rows
}

/**
 * Read a phase encoding: the slot selects a public wave, and the symbol is its quantised phase at the point.
 *
 * A category c of m adds a c / m turns for the character a of the wave, rounded down to a phase unit.
 */
private fun readPhase(wire: Map<*, *>): Encoding {
    checkKeys(wire, "phase", listOf("type", "weights", "phases"), listOf("attributes", "characters"))
    val weights = readWeights(wire["weights"], MAX_WAVES)
    val phases = integer(wire["phases"], "phases", 4, 1024)
    val attributes = readPhaseAttributes(wire.getOrDefault("attributes", emptyList<Any?>()))
    val characters = readCharacters(wire.getOrDefault("characters", emptyList<Any?>()), attributes, weights)
    val suits = { circles: List<Int> -> weights.all { row -> circles.all { row[it] % FULL_TURN == 0L } } }
    val nSlots = weights.size.toLong()
    return Encoding(weights[0].size, nSlots, phases, addsSymbol = false, suits = suits, attributes = attributes) { point, slot, codes ->
        val turned = attributes.indices.sumOf { place ->
            val nCategories = attributes[place].nCategories.toLong()
            characters[slot.toInt()][place] * codes[place] % nCategories * TURN / nCategories
        }
        longArrayOf((project(weights[slot.toInt()], point) + turned).mod(TURN) * phases / TURN)
    }
}

/** Read a lattice: the symbol is the vector of floor(x steps + 1/2) over the coordinates x in [0, 1]. */
private fun readLattice(wire: Map<*, *>): Encoding {
    checkKeys(wire, "lattice", listOf("type", "n_features", "steps"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES.toLong()).toInt()
    val steps = integer(wire["steps"], "steps", 1, MAX_STEPS)
    return Encoding(nFeatures, 1, null, steps) { point, _, _ -> LongArray(nFeatures) { floor(point[it] * steps + 0.5).toLong() } }
}

internal fun readCentroids(wire: Any?): List<List<Long>> {
    val rows = list(wire, "centroids", 1, 256) { row ->
        list(row, "a centroid", 1, MAX_FEATURES) { integer(it, "coordinates", 0, LATTICE - 1) }
    }
    check(rows.all { it.size == rows[0].size }) { "all centroids must have the same length" }
    return rows
}

/**
 * Return the index of the nearest centroid and whether the point lies above it in a feature.
 *
 * Of equally near centroids, return the first. For `feature` equal to the number of features, the second value is true.
 */
internal fun findNearest(centroids: List<List<Long>>, point: DoubleArray, feature: Int): Pair<Int, Boolean> {
    val coordinates = point.map { cellIndex(it, LATTICE) }
    val best = centroids.indices.minBy { index -> // minBy returns the first minimum
        coordinates.indices.sumOf { axis -> (centroids[index][axis] - coordinates[axis]).let { it * it } }
    }
    return Pair(best, feature == coordinates.size || coordinates[feature] > centroids[best][feature])
}

/** Read a nearest-centroid encoding: the nearest public centroid and the side of it on which the point lies in feature `slot`. */
private fun readNearestCentroid(wire: Map<*, *>): Encoding {
    checkKeys(wire, "nearest_centroid", listOf("type", "centroids"))
    val centroids = readCentroids(wire["centroids"])
    val nFeatures = centroids[0].size
    return Encoding(nFeatures, nFeatures.toLong(), 2L * centroids.size) { point, slot, _ ->
        val (index, above) = findNearest(centroids, point, slot.toInt())
        longArrayOf(2L * index + if (above) 1 else 0)
    }
}

/** Read a centroid sign: the product of a public Walsh sign of the nearest centroid and the side on which the point lies. */
private fun readCentroidSign(wire: Map<*, *>): Encoding {
    checkKeys(wire, "centroid_sign", listOf("type", "centroids"))
    val centroids = readCentroids(wire["centroids"])
    val nFeatures = centroids[0].size
    var nRows = 1L
    while (nRows < centroids.size) nRows *= 2
    return Encoding(nFeatures, (nFeatures + 1) * nRows, 2, addsSymbol = false) { point, slot, _ ->
        val (index, above) = findNearest(centroids, point, (slot / nRows).toInt())
        val isMinus = (slot % nRows and index.toLong()).countOneBits() % 2 == 1
        longArrayOf(if (isMinus == above) 0 else 1)
    }
}
