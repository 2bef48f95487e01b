/** Stand-in for the annotation of kotlinx.serialization.json, used by `make sdks`. */
@file:Suppress("unused")

package kotlinx.serialization.json

@Target(AnnotationTarget.CLASS)
@kotlinx.serialization.ExperimentalSerializationApi
annotation class JsonClassDiscriminator(val discriminator: String)
