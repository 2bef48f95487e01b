"""Resources of the service as frozen dataclasses. `sfumato.api.parsers` makes them from JSON values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict
from sfumato.model.tables import html_bar, html_table
from sfumato.privacy.accountant import Accounting
from sfumato.profiles.cluster_profile import ClusterProfile
from sfumato.settings import Shuffler as Shuffler
from sfumato.specs import Embedding, Feature, RoundSpec
from sfumato.specs.attributes import Attribute

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

Wire = Mapping[str, Any]

JobState = Literal["queued", "running", "collecting", "succeeded", "failed", "canceled", "expired"]
SHOWN_FEATURES = 12  # in the HTML of a notebook
FINAL_STATES: frozenset[JobState] = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset's declaration. It contains no reports or records."""

    id: str
    name: str
    trust: Literal["local", "shuffled", "central"]
    features: tuple[Feature, ...]
    min_reports: int
    keep_reports: bool
    created_at: datetime
    user_feature: str | None = None  # column with the user of a record
    fold_user_case: bool = False
    max_records_per_user: int = 1
    out_of_bounds: Literal["count", "clip", "refuse"] = "clip"
    source: str | None = None  # label of the people in the data
    accounting: Accounting = "additive"  # the way in which costs add up
    shuffler: Shuffler | None = None  # None if the dataset is not shuffled
    attributes: tuple[Attribute, ...] = ()  # columns that describe clusters
    embedding: Embedding | None = None  # the ball that bounds the records, if the dataset declares one
    warnings: tuple[str, ...] = field(default=(), compare=False)  # after the creation: others are over the same people
    etag: str | None = field(default=None, compare=False, repr=False)  # entity tag of the response, for `if_match`

    def _repr_html_(self) -> str:
        shown = [f"{each.name} {each.lower:g} to {each.upper:g} {each.unit}" for each in self.features[:SHOWN_FEATURES]]
        n_more = len(self.features) - len(shown)
        features = "; ".join([*shown, f"{n_more} more"] if n_more else shown)
        return html_table({"dataset": self.name, "id": self.id, "trust": self.trust, "features": features})


@dataclass(frozen=True, slots=True)
class AttributeCounts:
    """Values of an upload that an attribute does not declare. They are private."""

    name: str
    n_other: int = 0  # outside the vocabulary
    n_missing: int = 0
    n_outside: int = 0  # beyond the edges of the bins


@dataclass(frozen=True, slots=True)
class SourceDataset:
    """A dataset of a source with its costs, in epsilon and delta."""

    id: str
    name: str
    trust: Literal["local", "shuffled", "central"]
    accounting: Accounting
    created_at: datetime
    deleted_at: datetime | None
    granted: float
    reserved: float
    charged: float
    delta_granted: float  # sum of both grants of a shuffled dataset
    delta_reserved: float
    delta_charged: float


@dataclass(frozen=True, slots=True)
class SourceLimit:
    """The most that the datasets of a source may spend together. None is no limit.

    Attributes
    ----------
    rule : {'amounts', 'grants', 'none'}
        Amounts that the operator set, the largest grants of one of the datasets, or nothing.
    epsilon, shuffled_epsilon, delta : float or None
    mu2_pico : int or None
        Largest mu^2 in units of 1e-12, if it counts.
    remaining : float or None
        Epsilon that remains as a sum, at least 0.
    remaining_share : float or None
        Part that remains, in the terms of the accounting.
    """

    rule: Literal["amounts", "grants", "none"]
    epsilon: float | None
    shuffled_epsilon: float | None
    delta: float | None
    mu2_pico: int | None
    remaining: float | None
    remaining_share: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """Costs of the same people: sums over all datasets of a source, deleted ones included.

    Attributes
    ----------
    source : str or None
        Label of the people; None for datasets without a label.
    name : str or None
        Name that selects the datasets, if one was given.
    n_datasets : int
    datasets : tuple of SourceDataset
        Newest first, at most 200.
    accounting : {'additive', 'gaussian'}
        Gaussian if all datasets with costs have it.
    charged, reserved, shuffled_charged, delta_charged, delta_reserved : float
    certified_shuffled_epsilon : float or None
        Epsilon that all releases certify together, at the delta of the limit under Gaussian accounting.
    charged_mu2_pico, reserved_mu2_pico : int or None
        None if additive.
    certified_epsilon : float or None
        Epsilon that all charges certify together at the delta of the limit.
    limit : SourceLimit
    """

    source: str | None
    name: str | None
    n_datasets: int
    datasets: tuple[SourceDataset, ...]
    accounting: Accounting
    charged: float
    reserved: float
    shuffled_charged: float
    certified_shuffled_epsilon: float | None
    delta_charged: float
    delta_reserved: float
    charged_mu2_pico: int | None
    reserved_mu2_pico: int | None
    certified_epsilon: float | None
    limit: SourceLimit


@dataclass(frozen=True, slots=True)
class RecordUpload:
    """The stored records of an upload."""

    id: str
    n_records: int
    n_clipped: int  # records with a value that was clipped to a bound
    n_zeros: int = 0  # zero vectors of an embedding, which suggest missing data
    n_constant: int = 0  # features that are constant
    n_repeated: int = 0  # records that the dataset had already, if at least half of the upload
    n_lacking: int | None = 0  # records that a job over two clusters lacks, at the whole epsilon if the key may read it
    warnings: tuple[str, ...] = ()  # faults that the records may have, such as clipped values
    attributes: tuple[AttributeCounts, ...] = ()  # one entry for each attribute of the dataset


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The private record counts of a central dataset."""

    n_records: int
    n_uploads: int
    n_clipped: int
    n_users: int | None  # None if the dataset has no user_feature
    n_used: int  # counting the first max_records_per_user of each user


@dataclass(frozen=True, slots=True)
class Round:
    """A round: one specification, open for reports for a limited time."""

    id: str
    dataset_id: str
    job_id: str | None
    collection_id: str
    index: int
    state: Literal["open", "closed", "tallied", "failed"]
    epsilon: float  # cost of a report for a device
    spec: RoundSpec
    target_reports: int
    min_reports: int
    n_received: int  # acknowledged reports, including repeated ones
    n_reports: int | None  # distinct reports; None before the tally
    keep_reports: bool  # whether reports are kept after the tally; fixed when the round opens
    opened_at: datetime
    closes_at: datetime
    closed_at: datetime | None
    tallied_at: datetime | None
    min_batch: int | None = None  # minimum number of reports in a release; None if the dataset is not shuffled
    honest_share: float | None = None  # share of honest reports that the cost of a release assumes
    hpke_public_key: str | None = None  # X25519 key that seals reports, base64
    shuffled_epsilon: float | None = None  # cost of the release towards the service
    shuffled_delta: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job's collection."""

    rounds_opened: int
    open_round_id: str | None
    n_received: int
    target_reports: int | None


@dataclass(frozen=True, slots=True)
class UsedRounds:
    """The rounds that a job uses: those that it opened, or the earlier ones that it names."""

    n_rounds: int
    n_reports: int
    epsilon: float  # largest cost of the rounds for one device


@dataclass(frozen=True, slots=True)
class JobError:
    """Reason why a job failed or expired."""

    code: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job: one request to cluster a dataset."""

    id: str
    dataset_id: str
    algorithm: Wire  # type and parameters
    round_ids: tuple[str, ...]  # earlier rounds that the job uses
    state: JobState
    epsilon: float  # reserved at submission
    target_reports: int | None  # None if the job uses earlier rounds or records
    min_reports: int
    collect_seconds: int
    progress: Progress
    attempts: int
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    delta: float = 0.0  # reserved at submission
    used: UsedRounds | None = None  # None over records
    verdict: Verdict | None = None  # None without a result
    features: tuple[str, ...] | None = None  # names of the features that the job uses; None for all

    @property
    def is_final(self) -> bool:
        """Return whether the job has a final state."""
        return self.state in FINAL_STATES

    def _repr_html_(self) -> str:
        error = {} if self.error is None else {"error": self.error.code}
        algorithm = {"algorithm": self.algorithm["type"], "epsilon": f"{self.cost:g}"}
        verdict = {} if self.verdict is None else {"verdict": self.verdict.value}
        return html_table({"job": self.id, "state": self.state} | verdict | algorithm | error, self._bar())

    def _bar(self) -> str:
        """Return a bar of the reports of the open round, or nothing."""
        progress = self.progress
        if self.state != "collecting" or not progress.target_reports:
            return ""
        n_received = min(progress.n_received, progress.target_reports)
        return html_bar([n_received, 0, progress.target_reports - n_received], progress.target_reports)

    @property
    def cost(self) -> float:
        """Return the reserved epsilon, or the cost of the earlier rounds that the job uses."""
        return self.used.epsilon if self.round_ids and self.used is not None else self.epsilon


@dataclass(frozen=True, slots=True)
class ResultRound:
    """A round that contributed to a result."""

    id: str
    index: int
    n_reports: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Charge:
    """A query of a job over records, with its cost."""

    description: str
    n_values: int  # numbers in the query answer
    epsilon_nano: int
    reference: str  # reference of the ledger entry
    delta_atto: int = 0
    rho_pico: int = 0  # share of the concentrated charge that covers it, in units of 1e-12


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The released result of a job."""

    job_id: str
    dataset_id: str
    algorithm: Wire
    epsilon: float  # cost of the collection; over records, the sum of the odometer
    rounds: tuple[ResultRound, ...]
    model: ClusterModel
    software_version: str
    created_at: datetime
    odometer: tuple[Charge, ...] = ()  # over records: all queries in order
    delta: float = 0.0  # over records, the sum of the odometer; 0 for a pure guarantee
    profile: ClusterProfile | None = None  # None unless the job is a profile

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        title: str = "",
        caption: str | None = None,
        names: Sequence[str] = (),
        outlines: Sequence[ArrayLike] | None = None,
    ) -> "Figure":
        """Plot the model with the cost in its caption; see `sfumato.plot`. Needs the extra `plot`.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes for the first panel alone. The default is a new figure.
        title, caption : str, optional
            Heading, and the line below it.
        names : sequence of str, optional
            Names of the clusters in the legend. The default is those of the model.
        outlines : sequence of array-like of shape (n, 2), optional
            Public lines on a map of two features.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from sfumato.plotting import figures

        caption = self._caption() if caption is None else caption
        return figures.plot(self.model, ax, title=title, caption=caption, names=names, outlines=outlines)

    def to_html(self, title: str = "") -> str:
        """Return the result as one HTML page without scripts, to send to other people. Needs the extra `plot`.

        The page has the plot, the clusters with their errors, the cards of a profile, warnings and the privacy cost.

        Parameters
        ----------
        title : str
            Heading. The default names the number of clusters.
        """
        from sfumato.api.result_page import html_page
        from sfumato.plotting import figures

        return html_page(self, figures.svg(self.model, caption=self._caption()), title)

    def to_geojson(self) -> dict[str, Any]:
        """Return regions and centres as GeoJSON if two features are longitude and latitude.

        See `sfumato.plotting.geojson.to_geojson`. Raise InvalidSpec if the result has no places.
        """
        from sfumato.plotting.geojson import to_geojson

        return to_geojson(self.model)

    def _repr_html_(self) -> str:
        """Return the plot as SVG for a notebook, or a table if matplotlib is missing."""
        from sfumato.plotting import figures

        try:
            return figures.svg(self.model, caption=self._caption())
        except ImportError:
            verdict = {"verdict": self.model.verdict.value}
            return html_table({"result": self.job_id, "clusters": str(self.model.n_clusters)} | verdict)

    def __repr__(self) -> str:
        return f"<Result of {self.job_id} at ε = {self.epsilon:g}: {self.model!r}>"

    def predict(self, points: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each point; see `ClusterModel.assign`."""
        return self.model.assign(points)

    def to_frame(self) -> "DataFrame":
        """Return the clusters as a DataFrame; see `ClusterModel.to_frame`."""
        return self.model.to_frame()

    def _caption(self) -> str:
        from sfumato.plotting import figures

        n_reports = sum(each.n_reports for each in self.rounds) or None
        return figures.describe(self.model, epsilon=self.epsilon, n_reports=n_reports)


@dataclass(frozen=True, slots=True)
class Key:
    """A bearer key. Only the response that creates it contains the secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    dataset_id: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    secret: str | None = field(default=None, repr=False)
