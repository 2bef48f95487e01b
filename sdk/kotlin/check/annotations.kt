/** The annotations of kotlinx.serialization that models carry, in its place where its library is not at hand: for `make sdks` alone. */
@file:Suppress("unused")

package kotlinx.serialization

@Target(AnnotationTarget.CLASS, AnnotationTarget.PROPERTY, AnnotationTarget.TYPE)
annotation class Serializable

@Target(AnnotationTarget.CLASS, AnnotationTarget.PROPERTY)
annotation class SerialName(val value: String)

@Target(AnnotationTarget.CLASS, AnnotationTarget.PROPERTY, AnnotationTarget.TYPE)
annotation class Contextual

@RequiresOptIn
annotation class ExperimentalSerializationApi
