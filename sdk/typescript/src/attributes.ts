/** Attributes of rounds: a public vocabulary, or numbers with public bins. */

import { at, check, checkKeys, choice, finite, isObject, list, text, type Json } from "./checks.js";
import { InvalidPoint } from "./errors.js";

export const MAX_ATTRIBUTES = 64;
const MAX_VALUES = 256;

/** An attribute: a public vocabulary, or numbers with public bins. */
export interface Attribute {
  readonly name: string;
  readonly kind: "categorical" | "numeric";
  readonly nCategories: number;
  /** Text of the members that decide on the category of a value. */
  readonly declaration: string;
  /**
   * Return the place of a value among the categories.
   *
   * @throws InvalidPoint The value is refused. The message contains no value.
   */
  category(value: unknown): number;
}

/** An attribute as a dataset declares it. */
export type AttributeDeclaration =
  | {
      readonly kind: "categorical";
      readonly name: string;
      readonly values: readonly string[];
      readonly unknown?: "refuse" | "other";
      readonly missing?: "refuse" | "category";
      readonly use?: "describe" | "cluster";
      readonly weight?: number;
    }
  | {
      readonly kind: "numeric";
      readonly name: string;
      readonly bins: readonly number[];
      readonly missing?: "refuse" | "category";
      readonly use?: "describe";
      readonly unit?: string;
    };

/** Read a list of attributes with unique names. */
export function readAttributes(wire: unknown, least: number, most: number): Attribute[] {
  const attributes = list(wire, "attributes", least, most, readAttribute);
  check(new Set(attributes.map(({ name }) => name)).size === attributes.length, "attributes must have unique names");
  return attributes;
}

/** Read the attributes of an encoding that takes at most a few, each with a vocabulary. */
export function readCategoricals(wire: Json, most: number): Attribute[] {
  const { attributes: given = [] } = wire; // null is no list
  const attributes = readAttributes(given, 0, most);
  check(attributes.every(({ kind }) => kind === "categorical"), "attributes must be categorical");
  return attributes;
}

function readAttribute(wire: unknown): Attribute {
  check(isObject(wire), "an attribute must be declared, not named: give its kind, and its values or bins");
  const kind = choice(wire["kind"], "the kind of an attribute", ["categorical", "numeric"]);
  return kind === "categorical" ? readCategorical(wire) : readNumeric(wire);
}

/** Read an attribute with a vocabulary. Values are compared by their code units, without a normal form. */
function readCategorical(wire: Json): Attribute {
  checkKeys(wire, "an attribute", ["name", "kind", "values"], ["unknown", "missing", "use", "weight"]);
  const name = text(wire["name"], "the name of an attribute");
  const values = list(wire["values"], "values", 2, MAX_VALUES, (value) => text(value, `${name}: a value`));
  const { unknown = "refuse" } = wire;
  const takesOther = choice(unknown, `${name}: unknown`, ["refuse", "other"]) === "other";
  const takesMissing = readMissing(wire, name);
  const categories = values.concat(takesOther ? "other" : [], takesMissing ? "missing" : []);
  const nCategories = categories.length;
  check(new Set(categories).size === nCategories, `${name}: categories must be unique`);
  const category = (value: unknown): number => {
    if (isMissing(value)) return missingCategory(name, takesMissing, nCategories);
    if (typeof value !== "string") throw new InvalidPoint(`${name} must be text, or missing`);
    const place = values.indexOf(value);
    if (place === -1 && !takesOther) throw new InvalidPoint(`${name} must be one of its declared values`);
    return place === -1 ? values.length : place;
  };
  return { name, kind: "categorical", nCategories, declaration: JSON.stringify([values, takesOther, takesMissing]), category };
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
  return { name, kind: "numeric", nCategories, declaration: JSON.stringify([bins, takesMissing]), category };
}

function readMissing(wire: Json, name: string): boolean {
  const { missing = "refuse" } = wire;
  return choice(missing, `${name}: missing`, ["refuse", "category"]) === "category";
}

function isMissing(value: unknown): boolean {
  return value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
}

function missingCategory(name: string, takesMissing: boolean, nCategories: number): number {
  if (!takesMissing) throw new InvalidPoint(`${name} is missing: give a value`);
  return nCategories - 1;
}
