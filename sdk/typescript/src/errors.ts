/**
 * The errors of this package.
 *
 *     SfumatoError
 *     ├── InvalidSpec      an invalid round spec, mechanism, encoding or parameter
 *     ├── InvalidPoint     a record that does not match the features
 *     ├── CapExceeded      a round that would exceed the user's cap
 *     ├── RoundRefused     a round with a false cost, unexpected features or a changed spec
 *     ├── StoreUnusable    a device store that cannot be read, written or locked
 *     ├── ApiProblem       a problem document of the service (RFC 9457)
 *     ├── JobTimeout       a job that has not ended in time
 *     ├── Unreachable      no response from the service within the retry time
 *     ├── Aborted          a call that its signal ended
 *     └── UnsupportedPlatform  a feature that this browser, phone or server lacks
 *
 * No message contains a value of a record.
 */

import type { Job, Problem } from "./generated/types.gen.js";
import type { Period } from "./periods.js";

/** The base class of all errors of this package. */
export class SfumatoError extends Error {
  /** Machine-readable error code, shared with the service and the other SDKs. */
  readonly code: string = "error";

  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** An invalid round spec, mechanism, encoding or parameter. */
export class InvalidSpec extends SfumatoError {
  override readonly code = "validation_failed";
}

/** A record with the wrong features or with a value that is not finite. The message contains feature names, never values. */
export class InvalidPoint extends SfumatoError {
  override readonly code = "point_invalid";
}

/**
 * A round that would exceed the user's cap on this device. Amounts are in nano-epsilon.
 *
 * `period` is undefined for the lifetime cap. Otherwise the next period begins on `nextBegin`, in UTC.
 */
export class CapExceeded extends SfumatoError {
  override readonly code = "cap_exceeded";

  constructor(
    readonly costNano: bigint,
    readonly spentNano: bigint,
    readonly capNano: bigint,
    readonly period?: Period,
    readonly nextBegin?: string,
  ) {
    const [per, later] = period === undefined ? ["", ""] : [` per ${period}`, `; the next ${period} begins on ${nextBegin} (UTC)`];
    super(`the round costs epsilon ${toDecimal(costNano)}, but ${toDecimal(spentNano)} of the cap of ${toDecimal(capNano)}${per} is spent; no report was sent${later}`);
  }
}

function toDecimal(nano: bigint): string {
  return String(Number(nano) / 1e9);
}

/** A round that declares less than it costs, has features that the app does not expect, or changed after it was answered. */
export class RoundRefused extends SfumatoError {
  override readonly code = "round_refused";
}

/**
 * A device store that cannot be read, written or locked. The device then sends no report: without its memory it would
 * perturb the same record a second time and would not know its spent epsilon.
 */
export class StoreUnusable extends SfumatoError {
  override readonly code = "store_unusable";
}

/** A problem document (RFC 9457) that the service returned. */
export class ApiProblem extends SfumatoError {
  override readonly code: string;

  constructor(
    readonly status: number,
    /** The document as received. Only `code` is always present. */
    readonly problem: Readonly<Partial<Problem>>,
  ) {
    const code = typeof problem.code === "string" ? problem.code : "internal_error";
    super(`${status} ${code}: ${String(problem.detail ?? problem.title ?? "")}`);
    this.code = code;
  }
}

/** No response within the retry time. A pending report stays in the store and can be sent again. */
export class Unreachable extends SfumatoError {
  override readonly code = "unreachable";
}

/** A call that its signal ended, if the signal has no reason of its own. `cause` is the platform's error. */
export class Aborted extends SfumatoError {
  override readonly code = "aborted";

  constructor(override readonly cause: unknown) {
    super("the call was aborted");
  }
}

/** A platform without a feature that the SDK needs. The message names the feature and a remedy. */
export class UnsupportedPlatform extends SfumatoError {
  override readonly code = "unsupported_platform";
}

/** A job that has not ended in time. `job` is its last known state. The job continues to run. */
export class JobTimeout extends SfumatoError {
  override readonly code = "job_not_finished";

  constructor(readonly job: Job, waitedSeconds: number) {
    super(`job ${job.id} has not ended after ${waitedSeconds} s; its state is ${job.state}`);
  }
}
