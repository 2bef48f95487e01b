"""Names that an analyst gives to clusters.

Names are stored beside a result. They are not computed from the data and cost nothing. They are texts for people;
labels, forecasts and profiles use the number of a cluster.
"""

from collections.abc import Iterable, Sequence

from sfumato.errors import InvalidSpec
from sfumato.validation import require, require_text


def check_names(names: Iterable[str], n_clusters: int) -> tuple[str, ...]:
    """Return the names of clusters, in their order.

    Parameters
    ----------
    names : iterable of str
        One name per cluster: 1 to 64 bytes, unique; empty for a cluster without a name. Or no name at all.
    n_clusters : int

    Returns
    -------
    tuple of str
        Empty if no cluster has a name.

    Raises
    ------
    InvalidSpec
        There is not one name per cluster, or a name is invalid or occurs twice.
    """
    require(not isinstance(names, str), "names must be a list with one name per cluster")
    checked = tuple(names)
    if not checked:
        return ()
    if len(checked) != n_clusters:
        raise InvalidSpec(f"names must have one name for each of the {n_clusters} clusters, not {len(checked)}")
    seen: dict[str, int] = {}
    for cluster, name in enumerate(checked):
        if name == "":
            continue
        require_text(name, f"the name of cluster {cluster}")
        if (other := seen.setdefault(name, cluster)) != cluster:
            raise InvalidSpec(f"the name of cluster {cluster} must be unique: cluster {other} has the same")
    return checked if seen else ()


def cluster_title(names: Sequence[str], cluster: int) -> str:
    """Return the title of a cluster, such as `cluster 2` or `cluster 2, Commuters`."""
    name = names[cluster] if cluster < len(names) else ""
    return f"cluster {cluster}, {name}" if name else f"cluster {cluster}"
