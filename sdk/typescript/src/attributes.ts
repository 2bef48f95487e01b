/** Attributes of rounds: a public vocabulary, or numbers with public bins. */

import { at, check, checkKeys, finite, isObject, list, optional, type Json } from "./checks.js";
import { InvalidPoint } from "./errors.js";

const MAX_VALUES = 256;

/** An attribute: a public vocabulary, or numbers with public bins. */
export interface Attribute {
  readonly name: string;
  readonly kind: "categorical" | "numeric";
  readonly nCategories: number;
  /**
   * Return the place of a value among the categories.
   *
   * @throws InvalidPoint The value is refused. The message contains no value.
   */
  category(value: unknown): number;
}

function text(value: unknown, name: string): string {
  check(typeof value === "string" && value.length > 0 && value.length <= 64, `${name} must be text of 1 to 64 characters`);
  return value;
}

function choice(value: unknown, name: string, choices: readonly string[]): string {
  check(typeof value === "string" && choices.includes(value), `${name} must be one of ${choices.join(", ")}`);
  return value;
}

/** Read an attribute. */
export function readAttribute(wire: unknown): Attribute {
  check(isObject(wire), "an attribute must be an object");
  const kind = choice(wire["kind"], "the kind of an attribute", ["categorical", "numeric"]);
  return kind === "categorical" ? readCategorical(wire) : readNumeric(wire);
}

/** Read an attribute with a vocabulary. Values are compared by their code units, without a normal form. */
function readCategorical(wire: Json): Attribute {
  checkKeys(wire, "an attribute", ["name", "kind", "values"], ["unknown", "missing", "use", "weight"]);
  const name = text(wire["name"], "the name of an attribute");
  const values = list(wire["values"], "values", 2, MAX_VALUES, (value) => text(value, `${name}: a value`));
  const takesOther = choice(optional(wire, "unknown", "refuse"), `${name}: unknown`, ["refuse", "other"]) === "other";
  const takesMissing = readMissing(wire, name);
  const categories = [...values, ...(takesOther ? ["other"] : []), ...(takesMissing ? ["missing"] : [])];
  const nCategories = categories.length;
  check(new Set(categories).size === nCategories, `${name}: values must be unique, and differ from the categories other and missing if these are used`);
  const category = (value: unknown): number => {
    if (isMissing(value)) return missingCategory(name, takesMissing, nCategories);
    if (typeof value !== "string") throw new InvalidPoint(`${name} must be text, or missing`);
    const place = values.indexOf(value);
    if (place === -1 && !takesOther) throw new InvalidPoint(`${name} must be one of its declared values`);
    return place === -1 ? values.length : place;
  };
  return { name, kind: "categorical", nCategories, category };
}

/** Read a numeric attribute. A value belongs to the bin that starts at or below it; beyond the edges, to the nearest bin. */
function readNumeric(wire: Json): Attribute {
  checkKeys(wire, "an attribute", ["name", "kind", "bins"], ["missing", "use", "unit"]);
  const name = text(wire["name"], "the name of an attribute");
  const bins = list(wire["bins"], "bins", 3, MAX_VALUES + 1, (edge) => finite(edge, `${name}: an edge`));
  check(bins.every((edge, place) => place === 0 || edge > at(bins, place - 1)), `${name}: the edges must be ascending`);
  const takesMissing = readMissing(wire, name);
  const nCategories = bins.length - 1 + Number(takesMissing);
  const inner = bins.slice(1, -1);
  const category = (value: unknown): number => {
    if (isMissing(value)) return missingCategory(name, takesMissing, nCategories);
    if (typeof value !== "number" || !Number.isFinite(value)) throw new InvalidPoint(`${name} must be a finite number`);
    return inner.filter((edge) => edge <= value).length;
  };
  return { name, kind: "numeric", nCategories, category };
}

function readMissing(wire: Json, name: string): boolean {
  return choice(optional(wire, "missing", "refuse"), `${name}: missing`, ["refuse", "category"]) === "category";
}

function isMissing(value: unknown): boolean {
  return value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
}

function missingCategory(name: string, takesMissing: boolean, nCategories: number): number {
  if (!takesMissing) throw new InvalidPoint(`${name} is missing: give a value`);
  return nCategories - 1;
}
