/** The same for kotlinx.serialization.json. */
@file:Suppress("unused")

package kotlinx.serialization.json

@Target(AnnotationTarget.CLASS)
@kotlinx.serialization.ExperimentalSerializationApi
annotation class JsonClassDiscriminator(val discriminator: String)
