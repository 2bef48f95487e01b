/** What this package throws on purpose; no message quotes a person's value. */
package sfumato.device

/** Base of every error of this package; `code` is the service's word for it where it has one. */
public sealed class SfumatoException(public val code: String, message: String) : Exception(message)

/** A round, a mechanism, an encoding or an epsilon that cannot be. */
public class InvalidSpec(message: String) : SfumatoException("validation_failed", message)

/** A record that does not fit the declared features. */
public class InvalidPoint(message: String) : SfumatoException("point_invalid", message)

/** Answering would cost the user more than the cap they set on this device. */
public class CapExceeded(message: String) : SfumatoException("cap_exceeded", message)

/** A round this device does not answer: it says less than it costs, or has changed since. */
public class RoundRefused(message: String) : SfumatoException("round_refused", message)

/** What a device remembers cannot be read, or not be locked: not knowing what it answered, it answers nothing. */
public class StoreUnusable(message: String) : SfumatoException("store_unusable", message)

/** A problem the service answered with. */
public class ApiProblem(public val status: Int, code: String, detail: String) : SfumatoException(code, "$status $code: $detail")

/** No answer within the retries; what was to be sent is kept and can be sent again. */
public class Unreachable(message: String) : SfumatoException("unreachable", message)
