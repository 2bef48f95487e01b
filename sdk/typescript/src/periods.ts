/**
 * Cap of a device for a day, week, month, quarter or year, by the device's own clock.
 *
 * The lifetime cap does not stop a server that opens the rounds of a year within a day. The cap of a period does. The device
 * therefore reads neither the times nor the indices of the service. Its periods never go back: the day of an answer is never
 * before that of an earlier answer, even if the clock is.
 *
 * Periods are those of the Gregorian calendar in UTC, so that a change of the time zone begins no new period. Weeks begin on
 * Monday.
 */

import { parseEpsilon } from "./accounting.js";
import { check } from "./checks.js";
import type { Memory } from "./store.js";

/** A period of the calendar in UTC. */
export type Period = "day" | "week" | "month" | "quarter" | "year";

/** The largest epsilon that a device spends on a dataset within a period, in [1e-6, 32] with at most nine decimals. */
export interface PeriodCap {
  readonly period: Period;
  readonly epsilon: number | string;
}

export const LAST_DAY = 2_900_000; // in the year 9909; a later clock counts as this day
const DAY_MILLISECONDS = 86_400_000;
const LONGEST: Readonly<Record<Period, number>> = { day: 1, week: 7, month: 31, quarter: 92, year: 366 };
const MONTHS: Readonly<Partial<Record<Period, number>>> = { month: 1, quarter: 3, year: 12 };

/** Return a period and its cap in nano-epsilon. Throw InvalidSpec if they are not valid. */
export function readPeriodCap({ period, epsilon }: PeriodCap): { readonly period: Period; readonly capNano: bigint } {
  check(Object.hasOwn(LONGEST, period), `the period of capPerPeriod must be one of ${Object.keys(LONGEST).join(", ")}`);
  return { period, capNano: parseEpsilon(epsilon) };
}

/** Return the day of an answer at a time in milliseconds since 1970-01-01 UTC: never before the days of earlier answers. */
export function findDay(milliseconds: number, memory: Memory): number {
  const clock = Number.isFinite(milliseconds) ? Math.floor(milliseconds / DAY_MILLISECONDS) : 0;
  return Object.values(memory.memos).reduce((latest, { day }) => Math.max(latest, day), Math.min(Math.max(clock, 0), LAST_DAY));
}

/** Return the first day of the period that contains a day, both in days since 1970-01-01. */
export function findFirstDay(period: Period, day: number): number {
  if (period === "week") return day - ((day + 3) % 7);
  const months = MONTHS[period];
  if (months === undefined) return day;
  const on = new Date(day * DAY_MILLISECONDS);
  return Date.UTC(on.getUTCFullYear(), on.getUTCMonth() - (on.getUTCMonth() % months), 1) / DAY_MILLISECONDS;
}

/** Return the first day of the next period as a date, such as 2026-11-30. */
export function findNextBegin(period: Period, day: number): string {
  const next = findFirstDay(period, findFirstDay(period, day) + LONGEST[period]);
  return new Date(next * DAY_MILLISECONDS).toISOString().slice(0, 10);
}
