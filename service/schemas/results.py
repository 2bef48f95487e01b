"""Schemas of results: models, profiles, costs and labels."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.algorithms import Algorithm
from service.schemas.base import EXAMPLE_ULID, MAX_INT, Double, Name, Wire, example, examples, integer
from service.schemas.features import CategoricalAttribute, Feature
from service.schemas.fields import Amount, Atto, ClusterId, Count, Cursor, DatasetId, JobId, Nano, RoundId, Time
from service.schemas.forecasts import Share, Verdict
from sfumato.limits import MAX_CELL_SYMBOLS
from sfumato.specs import algorithms

LossRatio = Annotated[Double, Field(ge=1)]

Distance = TypeAliasType(
    "Distance",
    Annotated[algorithms.Distance, Field(description="Distance of a point to a centroid.")],
)


class FuzzyMemberships(Wire):
    """Fuzzy memberships: u_c ~ D_c^(-1/(m-1)), with the distance D_c of a scaled point to centroid c."""

    type: Literal["fuzzy"]
    distance: Distance
    m: Double = Field(description="Fuzziness; greater than 1.")
    sigma0: Double = Field(
        description="Minimal spread of points around a centroid, as a share of the range of a feature."
    )


class GaussianMixtureMemberships(Wire):
    """Mixture memberships: u_c is proportional to size_c N(x; centroid_c, width_c^2) for a scaled point x.

    With categories, it is also proportional to the share of each of the record's categories in the cluster.
    """

    type: Literal["gaussian_mixture"]
    widths: list[Double] = Field(
        description="Standard deviation of each cluster in every direction, as a share of the range of a feature."
    )
    categories: list[Count] = Field(
        [],
        description="Number of categories of each attribute that formed the clusters. Their shares are the last "
        "coordinates of a centroid. If absent, there are none.",
    )


Memberships = TypeAliasType(
    "Memberships",
    Annotated[
        FuzzyMemberships | GaussianMixtureMemberships,
        Field(discriminator="type", description="Rule that gives the membership of a point in each cluster."),
    ],
)
ModelType = TypeAliasType(
    "ModelType",
    Annotated[
        Literal["label_map", "centroids"],
        Field(description="`label_map`: a label for every cell of a grid. `centroids`: the nearest centroid."),
    ],
)
PrivacyStatus = TypeAliasType(
    "PrivacyStatus",
    Annotated[
        Literal["dp", "post_processed", "public"],
        Field(
            description="`dp`: a noisy query answer or tally. `post_processed`: computed from such values. `public`: "
            "independent of the data."
        ),
    ],
)
PrivacyStatuses = TypeAliasType(
    "PrivacyStatuses", Annotated[dict[str, PrivacyStatus], Field(description="Privacy status of each field.")]
)
Diagnostics = TypeAliasType("Diagnostics", Annotated[dict[str, Any], Field(description="Diagnostics of the fit.")])


class ExpectedAgreement(Wire):
    """The expected adjusted Rand index of a result with that of another run, with an 80 % interval.

    It does not state that the result shows the true groups.
    """

    value: Share = Field(description="Expected adjusted Rand index.")
    lower: Share = Field(description="Lower end of the 80 % interval.")
    upper: Share = Field(description="Upper end of the 80 % interval.")


class ExpectedLoss(Wire):
    """The expected loss of centroids with an 80 % interval.

    It is the mean squared distance of points from their nearest centroid, relative to the best centroids of the same
    number.
    """

    value: LossRatio = Field(description="Expected loss.")
    lower: LossRatio = Field(description="Lower end of the 80 % interval.")
    upper: LossRatio = Field(description="Upper end of the 80 % interval.")


class FeatureCheck(Wire):
    """A check for features that divide people where nothing separates them, paid from the cost of the job."""

    epsilon: Amount = Field(description="Cost of the two queries of the check, as a part of the cost of the job.")
    gapless_shares: list[Share] = Field(
        description="Share of each feature in the separation of neighbouring clusters without a gap between them."
    )
    peak_scores: list[Double] = Field(
        description="How much more the histogram of each feature differs from one with a single peak than noise "
        "explains, in standard deviations. From 3 on, it has more than one peak."
    )
    irrelevant: list[str] = Field(
        description="Features with a large gapless share and no second peak. Empty if the check is not conclusive."
    )
    is_conclusive: bool = Field(description="Whether the records suffice for the check at this cost.")


ClusterName = TypeAliasType(
    "ClusterName",
    Annotated[
        str, Field(max_length=64, description="Name of a cluster, 1 to 64 bytes; empty for a cluster without a name.")
    ],
)
_Names = Annotated[
    list[ClusterName],
    Field(description="Names that an analyst gave to the clusters, in their order; empty without names."),
]


class ResultChange(Wire):
    """Names for the clusters of a result."""

    model_config = example(names=["Commuters", "Night owls"])

    names: list[ClusterName] = Field(
        max_length=MAX_CELL_SYMBOLS,
        description="A name for each cluster, in their order; an empty list removes all names. Names are unique.",
    )


class ClusterModel(Wire):
    """Released clusters. Every field but `names` and `ids` is computed from tallies or noisy query answers only."""

    type: ModelType
    features: list[Feature]
    n_clusters: Count
    sizes: list[Double] = Field(description="Estimated share of people in each cluster; the sum is 1.")
    size_errors: list[Double] = Field(description="Standard error of each share.")
    centroids: list[list[Double]] | None = Field(description="Centroid of each cluster, in the units of the features.")
    centroid_errors: list[list[Double]] | None = Field(
        description="Standard error of each coordinate of the centroids."
    )
    grid_shape: list[Count] | None = Field(
        description="Number of cells of each numeric feature, then the number of categories of an attribute that "
        "formed the clusters of a label map."
    )
    labels: list[Count] | None = Field(description="Cluster of each cell, row-major.")
    density: list[Double] | None = Field(
        description="Estimated share of people in each cell, in the order of `labels`."
    )
    memberships: Memberships | None = Field(description="Rule of soft memberships; null if the model has none.")
    outside_share: Annotated[Double, Field(ge=0, le=1)] | None = Field(
        description="Estimated share of all people that are outside of the bounds. Sizes are shares of those inside. "
        "Null if people outside were not counted.",
    )
    outside_share_error: Annotated[Double, Field(ge=0, le=1)] | None = Field(
        description="Standard error of the share outside."
    )
    dishonest_shares: list[Double] | None = Field(
        description="For reports: smallest share of dishonest devices that could have made each cluster, a lower "
        "bound. Null for results over records."
    )
    verdict: Verdict
    verdict_reason: str = Field(description="What the verdict follows from, as sentences; empty if it is not known.")
    expected_agreement: ExpectedAgreement | None = Field(
        description="Expected agreement of these clusters with those of another run; null if it is not estimated."
    )
    expected_loss: ExpectedLoss | None = Field(
        description="Expected loss of centroids; null for label maps and for methods without a measured loss."
    )
    feature_shares: list[Share] | None = Field(
        description="Share of each feature in the separation of the clusters; null without centroids. The squared "
        "distance of each centroid from the nearest other one is divided among the features. The share of an attribute "
        "is the sum over its categories."
    )
    feature_check: FeatureCheck | None = Field(description="Irrelevant features; null unless the job checks for them.")
    attributes: list[CategoricalAttribute] = Field(
        description="Attributes that formed the clusters. Each category is one of the last `features`, with its share."
    )
    names: _Names
    ids: list[ClusterId | None] = Field(
        description="Ids of the clusters of a window in their series, in their order; null for a cluster that has "
        "none. Empty unless the job measured a window."
    )
    diagnostics: Diagnostics
    warnings: list[str] = Field(description="Limitations of this result, as sentences.")
    privacy: PrivacyStatuses


ProfileStatus = TypeAliasType(
    "ProfileStatus",
    Annotated[
        Literal["described", "no_association_found"],
        Field(description="Whether the values of an attribute are released, or no association was found."),
    ],
)
_Interval = Annotated[list[Double], Field(min_length=2, max_length=2)]


class AttributeProfile(Wire):
    """Counts and shares of the values of an attribute in each cluster, row by row."""

    name: str = Field(description="Name of the attribute or feature.")
    status: ProfileStatus
    association: Share = Field(
        description="Share of people that would have to change their value if it were independent of the cluster."
    )
    association_error: Amount = Field(description="Standard error of the noise of the association.")
    values: list[str] = Field(description="Categories of the attribute; empty unless it is described.")
    counts: list[list[Annotated[int, integer(-MAX_INT)]]] | None = Field(
        description="Noisy numbers of records; they may be negative."
    )
    shares: list[list[Share]] | None = Field(
        description="Shares within each cluster, rounded to a tenth of the first digit of the error; each row adds up "
        "to 1 before."
    )
    share_errors: list[list[Amount]] | None = Field(description="Standard error of the noise of each share.")


class Distinguishing(Wire):
    """A value with a share in a cluster that differs from its share in all other clusters."""

    cluster: Count
    attribute: str = Field(description="Name of the attribute.")
    value: str = Field(description="Category of the attribute.")
    share: Share = Field(description="Share in the cluster.")
    share_error: Amount = Field(description="Standard error of the noise of the share.")
    rest: Share = Field(description="Share in all other clusters.")
    difference: Double = Field(description="Difference of the two shares.")
    difference_interval: _Interval = Field(description="Interval of the difference for people like these.")
    lift: Amount = Field(description="Ratio of the two shares.")
    interval: _Interval = Field(description="Interval of the lift.")


class ClusterProfile(Wire):
    """Values that distinguish each cluster. Every field but `names` is computed from noisy query answers only."""

    type: Literal["profile"]
    of: JobId = Field(description="Job that released the clusters.")
    n_clusters: Count
    sizes: list[Share] = Field(description="Share of the records in each cluster, by the counts of the profile.")
    size_errors: list[Amount] = Field(description="Standard error of each share.")
    attributes: list[AttributeProfile] = Field(description="The attributes of the request.")
    distinguishing: list[Distinguishing] = Field(
        description="The clearest lifts first. Each cluster has at most 50 values, those with the clearest "
        "differences. If there are more, a warning states it."
    )
    too_small: list[Count] = Field(description="Clusters with too few records to describe.")
    false_discovery_rate: Share = Field(description="About this share of the listed values may be chance.")
    n_tested: Count = Field(description="Number of tested values.")
    names: _Names
    warnings: list[str] = Field(description="Limitations of this profile, as sentences.")
    diagnostics: Diagnostics
    privacy: PrivacyStatuses


class UsedRound(Wire):
    """A round that the result was computed from."""

    id: RoundId
    index: Count
    n_reports: Count
    epsilon: Amount


class Charge(Wire):
    """One entry of the odometer: a query of a job over records to the curator and its cost."""

    description: str = Field(description="Kind of the query, such as `counts`.", examples=["counts"])
    n_values: Count = Field(description="Number of values in the query answer.")
    epsilon: Amount
    epsilon_nano: Nano
    delta: Amount
    delta_atto: Atto
    rho_pico: Annotated[int, integer()] = Field(
        description=(
            "Share of the preceding block of Gaussian noise, which was charged for this query, in units of 1e-12; "
            "else 0."
        )
    )
    reference: str = Field(
        description="Reference of the ledger entry: the job and the index of the query.",
        examples=[f"job_{EXAMPLE_ULID}#0"],
    )


class Result(Wire):
    """The released result of a job."""

    job_id: JobId
    dataset_id: DatasetId
    algorithm: Algorithm
    epsilon: Amount = Field(description="Cost of the collection for a device; over records, the sum of the odometer.")
    delta: Amount = Field(description="Over records: the sum of the odometer; 0 for a pure guarantee.")
    rounds: list[UsedRound]
    odometer: list[Charge] = Field(
        description="Over records: all queries in order with their costs. Each has an entry in the ledger."
    )
    model: ClusterModel = Field(description="The clusters; for a profile, those that it describes.")
    profile: ClusterProfile | None = Field(
        description="Shares of the values of attributes in each cluster; null unless the job is a profile."
    )
    software_version: str
    created_at: Time


class Labels(Wire):
    """The label map without the rest of the model."""

    type: Literal["cells"]
    grid_shape: list[Count] = Field(
        description="Number of cells of each numeric feature, then of categories of a clustering attribute."
    )
    labels: list[Count] = Field(description="Cluster of each cell, row-major.")
    names: _Names


class ReportLabel(Wire):
    """The most probable cluster of a report, computed from the published model and the report."""

    report_id: str = Field(description="Id that the device sent: 32 lower-case hexadecimal digits.")
    round_id: RoundId
    cluster: Count
    confidence: Share = Field(description="Posterior probability of the cluster, assuming that the model is correct.")


class ReportLabelPage(Wire):
    """Labels of reports in the order of arrival within each round, with their expected accuracy."""

    type: Literal["reports"]
    items: list[ReportLabel]
    next_cursor: Cursor
    expected_accuracy: Share = Field(
        description="Mean confidence over the first 10,000 reports of each round: the expected share of correct labels."
    )
    baseline: Share = Field(description="Share of the largest cluster: the accuracy of always choosing it.")
    caution: str = Field(description="Both figures as a sentence, with a better alternative.")
    names: _Names


LabelsAnswer = TypeAliasType(
    "LabelsAnswer",
    Annotated[
        Labels | ReportLabelPage, Field(discriminator="type", description="The label map, or labels of reports.")
    ],
)
LabelKind = TypeAliasType(
    "LabelKind", Annotated[Literal["cells", "reports"], Field(description="Object of labels: cells or reports.")]
)


_MANY = Field(max_length=1_000_000)


class Points(Wire):
    """Points to label, as `points`, or as `columns` and `rows`. They are not stored."""

    model_config = examples(
        {"points": [[2.35, 48.86], [-0.13, 51.51]]},
        {"columns": ["spend", "plan"], "rows": [[35, "pro"], [20, "free"]]},
        constraints={
            "allOf": [
                {
                    "oneOf": [
                        {"required": ["points"], "maxProperties": 1},
                        {"required": ["columns", "rows"], "maxProperties": 2},
                    ]
                }
            ]
        },
    )

    points: Annotated[list[list[Double]], _MANY] | SkipJsonSchema[None] = Field(
        None, description="One list per point, in the units of the features."
    )
    columns: Annotated[list[Name], Field(min_length=1)] | SkipJsonSchema[None] = Field(
        None,
        description="Numeric features, and the attributes that formed the clusters, in any order, each once.",
    )
    rows: Annotated[list[list[Double | str | None]], _MANY] | SkipJsonSchema[None] = Field(
        None,
        description="Values of records in the order of `columns`: numbers; an attribute is text, an integer, or null "
        "if it is missing.",
    )


class PointLabels(Wire):
    """Cluster of each point."""

    labels: list[Count]
    names: _Names
