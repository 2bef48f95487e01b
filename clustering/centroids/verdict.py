"""The verdict on centroids: the worst of several grounds, with the sentence that names it.

Two grounds have figures: the loss relative to the best centroids, and the agreement of the partition with that of
another run. Other grounds are facts, such as few reports.
"""

from math import inf
from typing import NamedTuple, TypedDict

from clustering.centroids.partition_agreement import POOR, PartitionAgreement
from sfumato.model.precision import ExpectedAgreement, ExpectedLoss, Verdict

GOOD_LOSS, BAD_LOSS = 1.3, 2.0  # largest upper end of a reliable loss; loss from which a result is doubtful

# limits of the expected agreement
AGREES, DIFFERS = 0.95, 0.6  # least value of a reliable partition; a lower one is doubtful
LEAST_AGREES = 0.7  # least lower end of the interval of a reliable partition
MOST_POOR = 0.04  # largest share of poor agreement among such results that are not doubtful
OF_MOMENTS = ("moments", "counts")  # sources that hide that two clusters share a centroid
LEAST_OF_MOMENTS = 0.9  # `LEAST_AGREES` of these sources

FEW = "There are few data for this number of clusters at this epsilon."
ALONE = "No two separate clusters were found."
OFTEN_POOR = f"More than {MOST_POOR:.0%} of such results agreed with another run to less than {POOR}.".replace(
    "%", " %"
)
UNKNOWN_LOSS = "The loss of this method relative to the best centroids was not measured."


class Ground(NamedTuple):
    """A ground of a verdict."""

    verdict: Verdict
    sentence: str


def judge_loss(loss: ExpectedLoss, bad_from: float) -> Ground:
    """Return the ground of an expected loss. It is doubtful from the upper end `bad_from` on."""
    if loss.value > BAD_LOSS or loss.upper >= bad_from:
        verdict = Verdict.DOUBTFUL
    else:
        verdict = Verdict.RELIABLE if loss.upper <= GOOD_LOSS else Verdict.UNCERTAIN
    return Ground(verdict, loss.sentence)


class Rating(TypedDict):
    """The fields of a model that rate it."""

    verdict: Verdict
    verdict_reason: str
    expected_agreement: ExpectedAgreement
    expected_loss: ExpectedLoss | None


def rate(loss: ExpectedLoss | None, agreement: PartitionAgreement, *others: Ground, bad_from: float = inf) -> Rating:
    """Return the verdict on centroids with its reason and both figures.

    Parameters
    ----------
    loss : ExpectedLoss or None
        None if the loss of the method was not measured. The result is then at best uncertain.
    agreement : PartitionAgreement
    others : Ground
        Further grounds.
    bad_from : float
        Upper end of the loss from which the result is doubtful.
    """
    expected = agreement.expected()
    of_loss = Ground(Verdict.UNCERTAIN, UNKNOWN_LOSS) if loss is None else judge_loss(loss, bad_from)
    least = LEAST_OF_MOMENTS if agreement.source in OF_MOMENTS else LEAST_AGREES
    of_tail = ground(Verdict.DOUBTFUL, OFTEN_POOR, applies=agreement.poor_share() > MOST_POOR)
    worst = decide(of_loss, judge_agreement(expected, least), of_tail, *others)
    return Rating(verdict=worst.verdict, verdict_reason=worst.sentence, expected_agreement=expected, expected_loss=loss)


def ground(verdict: Verdict, sentence: str, *, applies: bool) -> Ground:
    """Return a ground that limits the verdict if it applies, and confirms it otherwise."""
    return Ground(verdict, sentence) if applies else Ground(Verdict.RELIABLE, "")


def few(*, is_low: bool) -> Ground:
    """Return the ground of few data."""
    return ground(Verdict.DOUBTFUL, FEW, applies=is_low)


def judge_agreement(agreement: ExpectedAgreement, least: float = LEAST_AGREES) -> Ground:
    """Return the ground of an expected agreement. It is reliable from the lower end `least` on."""
    if agreement.value >= AGREES and agreement.lower >= least:
        verdict = Verdict.RELIABLE
    elif agreement.value < DIFFERS:
        verdict = Verdict.DOUBTFUL
    else:
        verdict = Verdict.UNCERTAIN
    return Ground(verdict, agreement.sentence)


def decide(*grounds: Ground) -> Ground:
    """Return the worst verdict and the sentences that lead to it.

    A reliable verdict has the sentences of both figures.
    """
    worst = Verdict.RELIABLE
    for ground in grounds:
        worst = worst.or_worse(ground.verdict)
    return Ground(worst, " ".join(each.sentence for each in grounds if each.sentence and each.verdict is worst))
