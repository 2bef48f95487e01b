/** The exceptions of this package. No message contains a value of a record. */
package sfumato.device

/** The base class of all exceptions of this package. `code` is shared with the service and the other SDKs. */
public sealed class SfumatoException(public val code: String, message: String) : Exception(message)

/** An invalid round spec, mechanism, encoding, id or epsilon. */
public class InvalidSpec(message: String) : SfumatoException("validation_failed", message)

/** A record with the wrong features or with a value that is not finite. */
public class InvalidPoint(message: String) : SfumatoException("point_invalid", message)

/** A round that would exceed the user's cap on this device. */
public class CapExceeded(message: String) : SfumatoException("cap_exceeded", message)

/** A round that declares less than it costs, has unexpected features, or changed after it was answered. */
public class RoundRefused(message: String) : SfumatoException("round_refused", message)

/** A device store that cannot be read, written or locked. The device then sends no report. */
public class StoreUnusable(message: String) : SfumatoException("store_unusable", message)

/** A problem document (RFC 9457) of the service. */
public class ApiProblem(public val status: Int, code: String, detail: String) : SfumatoException(code, "$status $code: $detail")

/** No response within the retry time. A pending report stays in the store and can be sent again. */
public class Unreachable(message: String) : SfumatoException("unreachable", message)
