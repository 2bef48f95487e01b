/**
 * What goes wrong on purpose, one tree.
 *
 *     SfumatoError
 *     ├── InvalidSpec      a round, mechanism, encoding or parameter that cannot be
 *     ├── InvalidPoint     a record that does not fit the declared features
 *     ├── CapExceeded      a round that would cost more than the user allows
 *     ├── RoundRefused     a round that says less than it costs, or is no longer what it was
 *     ├── StoreUnusable    a device's memory that cannot be trusted
 *     ├── ApiProblem       the service answered with a problem (RFC 9457)
 *     ├── JobTimeout       a job is not over in the time it was given
 *     └── Unreachable      the service could not be reached within the retries
 *
 * No message holds a record's value.
 */

import type { Job, Problem } from "./generated/types.gen.js";

/** Base of every error this package throws on purpose. */
export class SfumatoError extends Error {
  readonly code: string = "error";

  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** A round spec, mechanism, encoding or parameter that cannot be. */
export class InvalidSpec extends SfumatoError {
  override readonly code = "validation_failed";
}

/** A record with the wrong number of features or a value that is not finite; names the feature, never the value. */
export class InvalidPoint extends SfumatoError {
  override readonly code = "point_invalid";
}

/** Answering would cost the user more than the cap they set on this device. Amounts are nano-epsilon. */
export class CapExceeded extends SfumatoError {
  override readonly code = "cap_exceeded";

  constructor(
    readonly askedNano: bigint,
    readonly spentNano: bigint,
    readonly capNano: bigint,
  ) {
    super(`this round costs ${shown(askedNano)}, ${shown(spentNano)} of the cap of ${shown(capNano)} is spent: nothing was sent`);
  }
}

function shown(nano: bigint): string {
  return String(Number(nano) / 1e9);
}

/** A round this device does not answer: it says less than it costs, or has changed since. */
export class RoundRefused extends SfumatoError {
  override readonly code = "round_refused";
}

/**
 * What a device remembers cannot be read, or not be locked. Nothing is sent: a device that
 * forgot its answers would perturb the same record anew, and would not know what it has spent.
 */
export class StoreUnusable extends SfumatoError {
  override readonly code = "store_unusable";
}

/** A problem document the service answered with. */
export class ApiProblem extends SfumatoError {
  override readonly code: string;

  constructor(
    readonly status: number,
    /** As the service sent it: programs go by its `code`, and no member but `code` is sure to be there. */
    readonly problem: Readonly<Partial<Problem>>,
  ) {
    const code = typeof problem.code === "string" ? problem.code : "internal_error";
    super(`${status} ${code}: ${String(problem.detail ?? problem.title ?? "")}`);
    this.code = code;
  }
}

/** No answer within the retries; what was to be sent is kept and can be sent again. */
export class Unreachable extends SfumatoError {
  override readonly code = "unreachable";
}

/** A job that is not over in the time it was given, as it was last seen; it goes on. */
export class JobTimeout extends SfumatoError {
  override readonly code = "job_not_finished";

  constructor(readonly job: Job, waitedSeconds: number) {
    super(`${job.id} is still ${job.state} after ${waitedSeconds} s`);
  }
}
