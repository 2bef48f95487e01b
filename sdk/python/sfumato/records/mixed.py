"""Records with categories among numbers, as points of clusters: one feature for each category, its share.

A record has the share 1 of its category and 0 of the others. Clusters have shares in between. The share s of a category
is at 1/2 + g (s - 1/V) in the unit box, for V categories and g^2 (1 - 1/V) = weight / 24. So the squared distance of
two categories is 2 g^2, and evenly frequent categories vary half as much as an even feature. This is the balance of
k-prototypes (Huang 1998) as clustMixType sets it (Szepannek 2018), with public numbers in place of variances of data.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.records.attribute_codes import AttributeEncoder, InvalidCell
from sfumato.records.encodings import cells
from sfumato.records.inputs import Records, is_missing, list_values, named_columns, to_values
from sfumato.specs import Feature
from sfumato.specs.attributes import Attribute, Categorical, Numeric

SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters, which UTF-8 cannot encode
EVEN_VARIANCE = 1 / 24  # variance of evenly frequent categories with the weight 1


def step_of(attribute: Categorical) -> float:
    """Return g: the distance along a feature between share 0 and share 1, in the unit box."""
    return step_for(len(attribute.categories), attribute.weight)


def step_for(n_categories: int, weight: float = 1.0) -> float:
    """Return g of an attribute with this number of categories and weight."""
    return sqrt(weight * EVEN_VARIANCE / (1 - 1 / n_categories))


def expand_features(features: Sequence[Feature], attributes: Sequence[Categorical]) -> tuple[Feature, ...]:
    """Return numeric features, then one feature for the share of each category.

    The bounds of a share are where the unit interval ends, so that they lie outside of 0 and 1.
    """
    shares = []
    for attribute in attributes:
        middle, reach = 1 / len(attribute.categories), 0.5 / step_of(attribute)
        shares += [Feature(name, middle - reach, middle + reach) for name in attribute.share_names]
    return (*features, *shares)


def count_categories(attributes: Sequence[Categorical]) -> int:
    """Return the number of features that the categories of attributes have."""
    return sum(len(attribute.categories) for attribute in attributes)


def to_points(features: Sequence[Feature], attributes: Sequence[Categorical], records: Records) -> NDArray[np.float64]:
    """Return records as points of clusters: (n, n_features), in the units of the features.

    Parameters
    ----------
    features : sequence of Feature
        As `expand_features` returns them.
    attributes : sequence of Categorical
    records : array-like
        See `sfumato.records.inputs.to_values`. With attributes, a table with the columns of the numeric features and of
        the attributes; or values of all features, with a share for each category.

    Raises
    ------
    InvalidPoint
        A column is missing, unknown or repeated, or a value is not accepted. The message has no value.
    """
    names = [each.name for each in attributes]
    columns = named_columns(records) if attributes else None
    if columns is None or not columns.keys() & set(names):
        return to_values(features, records)
    n_numeric = len(features) - count_categories(attributes)
    if missing := [name for name in names if name not in columns]:
        raise InvalidPoint(f"the column {missing[0]} is missing, by whose categories the clusters were formed: add it")
    codes = [encode_column(attribute, columns.pop(attribute.name)) for attribute in attributes]
    if n_numeric == 0 and columns:
        raise InvalidPoint(f"columns must be those of the clusters: {', '.join(names)}")
    parts = [to_values(features[:n_numeric], columns)]
    if len({len(parts[0]), *map(len, codes)}) > 1:
        raise InvalidPoint(f"the columns {', '.join(names)} must have one value for each record")
    parts += [np.eye(len(each.categories))[code] for each, code in zip(attributes, codes, strict=True)]
    return np.concatenate(parts, axis=1)


def find_cells(scaled: NDArray[np.float64], shape: Sequence[int], n_numeric: int) -> NDArray[np.int64]:
    """Return the cells of scaled points of a label map: (n, ndim). A category is that of the largest share.

    Parameters
    ----------
    scaled : ndarray of shape (n, n_features)
        Numeric features in [0, 1], then the share of each category.
    shape : sequence of int
        Cells along each numeric feature, then the number of categories of each attribute.
    n_numeric : int
    """
    parts, first = [cells(scaled[:, :n_numeric], shape[:n_numeric])], n_numeric
    for n_categories in shape[n_numeric:]:
        parts.append(scaled[:, first : first + n_categories].argmax(axis=1)[:, None])
        first += n_categories
    return np.concatenate(parts, axis=1)


def encode_column(attribute: Categorical, column: Any) -> NDArray[np.int32]:
    """Return the code of each value of a column: (n,). Raise InvalidPoint for a value that is not accepted."""
    try:
        return AttributeEncoder(attribute, rejects_outside=False).encode(to_cells(attribute, column))
    except InvalidCell as error:
        raise InvalidPoint(f"record {error.row + 1} (counted from 1): {error}") from None
    except InvalidSpec as error:
        raise InvalidPoint(str(error)) from None


def to_cells(attribute: Attribute, column: Any) -> list[str]:
    """Return the values of an attribute as text, empty for missing ones. Raise InvalidSpec for values of other types.

    Raises
    ------
    InvalidSpec
        The column is missing, or a value is neither text nor a whole number, or for numeric attributes no number.
    """
    if column is None:
        raise InvalidSpec(f"the records have no column {attribute.name}, which is an attribute of the dataset: add it")
    return [_cell(attribute, value, place) for place, value in enumerate(list_values(column), 1)]


def _cell(attribute: Attribute, value: Any, place: int) -> str:
    if isinstance(value, str) and isinstance(attribute, Categorical) and not SURROGATES.search(value):
        return str(value)
    if is_missing(value):
        return ""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)
    if isinstance(attribute, Categorical) and is_whole:
        return str(value)
    if isinstance(attribute, Numeric) and (is_whole or isinstance(value, float | np.floating | Decimal)):
        return repr(float(value))
    wanted = "text or a whole number" if isinstance(attribute, Categorical) else "a number"
    raise InvalidSpec(
        f"{attribute.name} of record {place} (counted from 1) must be {wanted}; got {type(value).__name__}"
    )
