"""The round in which devices report their cluster among published clusters, and the category of one attribute."""

import numpy as np

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import cells, scale_many
from sfumato.records.outside import count_outside
from sfumato.specs import LATTICE, Profile, ProfileEncoding, RoundSpec, design_for
from sfumato.specs.attributes import Attribute


def profile_round(
    params: Profile, model: ClusterModel, attributes: tuple[Attribute, ...], *, counts_outside: bool
) -> RoundSpec:
    """Return the round of a profile from reports. It depends on released clusters and public parameters alone.

    Parameters
    ----------
    params : Profile
    model : ClusterModel
        The released clusters.
    attributes : tuple of Attribute
        The attributes to describe. Each device reports one of them.
    counts_outside : bool
        Whether records outside of the bounds are reported as such.

    Raises
    ------
    InvalidSpec
        The clusters and categories have too many symbols, or the label map too many cells. Also if a feature is
        periodic and the clusters are centroids, because a device measures distances along a line. Also if an attribute
        formed the clusters, because the encoding of a profile has cells of features alone.

    Examples
    --------
    >>> import numpy as np
    >>> from sfumato import Categorical, ClusterModel, Feature, Profile
    >>> from sfumato.profiles.profile_round import profile_round
    >>> places = np.array([[2.5], [7.5]])
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), places[:, 0] / 10, places[:, 0], places)
    >>> plan = Categorical("plan", ["free", "pro"])
    >>> profile = Profile(of="job_1", attributes=["plan"], epsilon=1)
    >>> profile_round(profile, model, (plan,), counts_outside=False).n_symbols
    4
    """
    if model.attributes:
        raise InvalidSpec(
            f"a profile from reports takes clusters of features alone, and {model.attributes[0].name} formed these: "
            "profile a job that leaves this attribute out of its features"
        )
    if model.label_map is not None:
        labels = model.label_map.ravel()
        starts = np.concatenate([[0], np.nonzero(np.diff(labels))[0] + 1])
        runs = tuple(starts.tolist()), tuple(labels[starts].tolist())
        encoding = ProfileEncoding(attributes, (), model.label_map.shape, *runs)
    elif any(feature.periodic for feature in model.features):
        raise InvalidSpec(
            "devices have no distances on a circle: a profile from reports needs a label map if a feature is periodic; "
            "cluster with shifted_grid"
        )
    else:
        scaled = scale_many(model.features, np.asarray(model.centroids))
        places = cells(scaled, [LATTICE] * len(model.features))
        encoding = ProfileEncoding(attributes, centroids=tuple(map(tuple, places.tolist())))
    if encoding.n_clusters != model.n_clusters:
        raise InvalidSpec("the label map must have a cell of each cluster")
    mechanism = design_for(encoding, "auto", params.epsilon_nano)
    spec = RoundSpec(model.features, encoding, mechanism)
    return count_outside(spec) if counts_outside else spec
