/** Encodings: how a point of [0, 1]^d becomes a symbol, as published. Deterministic and public. */
package sfumato.device

import kotlin.math.floor

internal const val MAX_FEATURES = 64
internal const val MAX_SYMBOLS = 1L shl 20 // of any encoding
internal const val MAX_STEPS = 1L shl 16 // lattice units across a feature's range
private const val MAX_TREE_CELLS = 1 shl 16
private const val MAX_TREE_BITS = 48 // of a cell's place

// Projections are integers: with 64 features no sum leaves 2^40, and every product is below 2^53.
private const val LATTICE = 1L shl 20
private const val MAX_WEIGHT = 1L shl 14
private const val MAX_PROJECTION = MAX_FEATURES * MAX_WEIGHT * LATTICE
private const val TURN = 1L shl 30 // of a phase

/** How a point becomes a symbol under a slot, the public part of a report: one number, or of a lattice a vector. */
internal class Encoding(
    val nFeatures: Int,
    val nSlots: Long,
    /** How many symbols there are; of a lattice, which has too many to count, null. */
    val nSymbols: Long?,
    /** Of a lattice: its units across a feature's range. */
    val steps: Long? = null,
    val symbol: (point: DoubleArray, slot: Long) -> LongArray,
)

internal val ENCODINGS: Map<String, (Map<*, *>) -> Encoding> = mapOf(
    "grid" to ::grid,
    "shifted_grid" to ::shiftedGrid,
    "tree_grid" to ::treeGrid,
    "projected_grid" to ::projectedGrid,
    "halfspace_code" to ::halfspaceCode,
    "phase" to ::phase,
    "lattice" to ::lattice,
    "nearest_centroid" to ::nearestCentroid,
    "centroid_sign" to ::centroidSign,
)

/** The cell of a coordinate in [0, 1], 0 .. nCells-1. */
private fun cell(coordinate: Double, nCells: Long): Long = minOf(floor(coordinate * nCells).toLong(), nCells - 1)

/** A power of small numbers; what would be too many symbols is only said to be too many. */
private fun power(base: Long, exponent: Int): Long {
    var product = 1L
    repeat(exponent) { product = minOf(product * base, MAX_SYMBOLS + 1) }
    return product
}

/** A plain grid: the symbol is the cell, row-major, the first feature slowest. */
private fun grid(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "grid", listOf("type", "cells"))
    val cells = items(wire["cells"], "cells", 1, MAX_FEATURES) { integer(it, "cells", 1, MAX_SYMBOLS) }
    val nSymbols = cells.fold(1L) { product, n -> minOf(product * n, MAX_SYMBOLS + 1) } // too many stay too many
    check(nSymbols in 2..MAX_SYMBOLS) { "a grid has 2 to $MAX_SYMBOLS cells" }
    return Encoding(cells.size, 1, nSymbols) { point, _ ->
        longArrayOf(cells.foldIndexed(0L) { feature, index, n -> index * n + cell(point[feature], n) })
    }
}

/** A coarse grid under one of `shifts` per feature public shifts; the slot is the shift, row-major. */
private fun shiftedGrid(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "shifted_grid", listOf("type", "n_features", "cells", "shifts"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, 8).toInt()
    val cells = integer(wire["cells"], "cells", 1, 4096)
    val shifts = integer(wire["shifts"], "shifts", 1, 64)
    val nSymbols = power(cells + 1, nFeatures)
    val nSlots = power(shifts, nFeatures)
    check(nSymbols <= MAX_SYMBOLS) { "a shifted grid has at most $MAX_SYMBOLS symbols" }
    check(nSlots <= MAX_SYMBOLS) { "a shifted grid has at most $MAX_SYMBOLS slots" }
    return Encoding(nFeatures, nSlots, nSymbols) { point, slot ->
        var index = 0L
        for (feature in 0 until nFeatures) {
            val shift = slot / power(shifts, nFeatures - 1 - feature) % shifts
            index = index * (cells + 1) + (cell(point[feature], cells * shifts) + shift) / shifts
        }
        longArrayOf(index)
    }
}

/** Dyadic cells of different levels that tile the box, listed as a tree is walked. */
private fun treeGrid(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "tree_grid", listOf("type", "n_features", "levels"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, 8).toInt()
    val most = (MAX_TREE_BITS / nFeatures).toLong()
    val levels = items(wire["levels"], "levels", 2, MAX_TREE_CELLS) { integer(it, "levels", 0, most).toInt() }
    val depth = levels.max()
    val whole = 1L shl (depth * nFeatures)
    val starts = LongArray(levels.size) // each cell's first finest box, counted along the walk
    var place = 0L
    levels.forEachIndexed { at, level ->
        val size = 1L shl ((depth - level) * nFeatures)
        check(place % size == 0L && place + size <= whole) { "these cells do not tile the box" }
        starts[at] = place
        place += size
    }
    check(place == whole) { "these cells do not tile the box" }
    return Encoding(nFeatures, 1, levels.size.toLong()) { point, _ ->
        val finest = point.map { cell(it, 1L shl depth) }
        val found = starts.binarySearch(zPlace(finest, depth))
        longArrayOf((if (found >= 0) found else -found - 2).toLong())
    }
}

/** The place along the walk of a finest box: its index's bits in turn, the first feature's first. */
private fun zPlace(index: List<Long>, depth: Int): Long {
    var place = 0L
    for (bit in depth - 1 downTo 0) {
        for (part in index) place = place * 2 + (part shr bit and 1)
    }
    return place
}

private fun readWeights(wire: Any?, most: Int): List<List<Long>> {
    val rows = items(wire, "weights", 1, most) { row ->
        items(row, "a row of weights", 1, MAX_FEATURES) { integer(it, "weights", -MAX_WEIGHT, MAX_WEIGHT) }
    }
    check(rows.all { it.size == rows[0].size }) { "rows of weights are of one length" }
    check(rows.all { row -> row.any { it != 0L } }) { "a row of weights is not all zero" }
    return rows
}

/** The sum of weight times coordinate, coordinates as places 0 .. 2^20-1: below 2^40 in size. */
private fun project(weights: List<Long>, point: DoubleArray): Long =
    weights.indices.sumOf { feature -> weights[feature] * cell(point[feature], LATTICE) }

/** One of several public projections, cut into coarse cells under one of several public shifts. */
private fun projectedGrid(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "projected_grid", listOf("type", "weights", "lowers", "spans", "cells", "shifts"))
    val weights = readWeights(wire["weights"], 128)
    val n = weights.size
    val lowers = items(wire["lowers"], "lowers", n, n) { integer(it, "lowers", -MAX_PROJECTION, MAX_PROJECTION) }
    val spans = items(wire["spans"], "spans", n, n) { integer(it, "spans", 1, 2 * MAX_PROJECTION) }
    val cells = integer(wire["cells"], "cells", 1, 256)
    val shifts = integer(wire["shifts"], "shifts", 1, 8)
    val fineCells = cells * shifts
    return Encoding(weights[0].size, n * shifts, cells + 1) { point, slot ->
        val projection = (slot / shifts).toInt()
        val span = spans[projection]
        val along = project(weights[projection], point) - lowers[projection]
        val fine = along.coerceIn(0, span) * fineCells / span
        longArrayOf((minOf(fine, fineCells - 1) + slot % shifts) / shifts)
    }
}

/** On which side of each of B public cuts a point lies: bit b of the symbol says of cut b. */
private fun halfspaceCode(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "halfspace_code", listOf("type", "weights", "thresholds"))
    val weights = readWeights(wire["weights"], 12)
    val n = weights.size
    val thresholds = items(wire["thresholds"], "thresholds", n, n) { integer(it, "thresholds", -MAX_PROJECTION, MAX_PROJECTION) }
    return Encoding(weights[0].size, 1, 1L shl n) { point, _ ->
        longArrayOf(weights.indices.sumOf { bit -> if (project(weights[bit], point) >= thresholds[bit]) 1L shl bit else 0L })
    }
}

/** The phase of one of several public waves: which of L equal parts of a turn a point falls in. */
private fun phase(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "phase", listOf("type", "weights", "phases"))
    val weights = readWeights(wire["weights"], 1024)
    val phases = integer(wire["phases"], "phases", 4, 1024)
    return Encoding(weights[0].size, weights.size.toLong(), phases) { point, slot ->
        longArrayOf(project(weights[slot.toInt()], point).mod(TURN) * phases / TURN)
    }
}

/** A point as a vector of integers: a coordinate in [0, 1] is floor(x steps + 1/2). */
private fun lattice(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "lattice", listOf("type", "n_features", "steps"))
    val nFeatures = integer(wire["n_features"], "n_features", 1, MAX_FEATURES.toLong()).toInt()
    val steps = integer(wire["steps"], "steps", 1, MAX_STEPS)
    return Encoding(nFeatures, 1, null, steps) { point, _ -> LongArray(nFeatures) { floor(point[it] * steps + 0.5).toLong() } }
}

private fun readCentroids(wire: Any?): List<List<Long>> {
    val rows = items(wire, "centroids", 1, 256) { row ->
        items(row, "a centroid", 1, MAX_FEATURES) { integer(it, "coordinates", 0, LATTICE - 1) }
    }
    check(rows.all { it.size == rows[0].size }) { "centroids are rows of one length" }
    return rows
}

/** The centroid, of equally near ones the first, and whether the point lies above it in the feature; past the last, it does. */
private fun nearest(centroids: List<List<Long>>, point: DoubleArray, feature: Int): Pair<Int, Boolean> {
    val places = point.map { cell(it, LATTICE) }
    val best = centroids.indices.minBy { index -> // the first of equals
        places.indices.sumOf { axis -> (centroids[index][axis] - places[axis]).let { it * it } }
    }
    return Pair(best, feature == places.size || places[feature] > centroids[best][feature])
}

/** The nearest of several public centroids, and on which side of it a point lies in one feature, the slot. */
private fun nearestCentroid(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "nearest_centroid", listOf("type", "centroids"))
    val centroids = readCentroids(wire["centroids"])
    val nFeatures = centroids[0].size
    return Encoding(nFeatures, nFeatures.toLong(), 2L * centroids.size) { point, slot ->
        val (index, above) = nearest(centroids, point, slot.toInt())
        longArrayOf(2L * index + if (above) 1 else 0)
    }
}

/** One bit about the nearest centroid: a public Walsh sign of it, times the side a point lies on. */
private fun centroidSign(wire: Map<*, *>): Encoding {
    onlyKeys(wire, "centroid_sign", listOf("type", "centroids"))
    val centroids = readCentroids(wire["centroids"])
    val nFeatures = centroids[0].size
    var nRows = 1L
    while (nRows < centroids.size) nRows *= 2
    return Encoding(nFeatures, (nFeatures + 1) * nRows, 2) { point, slot ->
        val (index, above) = nearest(centroids, point, (slot / nRows).toInt())
        val isMinus = (slot % nRows and index.toLong()).countOneBits() % 2 == 1
        longArrayOf(if (isMinus == above) 0 else 1)
    }
}
