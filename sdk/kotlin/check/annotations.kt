/** Stand-ins for the annotations of kotlinx.serialization, so that `make sdks` compiles the models without that library. */
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
