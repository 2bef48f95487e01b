"""A job of type `auto`: reserves its epsilon, runs what was chosen, and chooses the same on every replay."""

from sqlalchemy.orm import undefer

from clustering import registry
from clustering.plan import Collected, Tally, drive
from models.job import JobState
from models.round import Round
from sfumato.accounting import NANO
from sfumato.forecast import choose, forecast
from sfumato.specs import Auto, Feature, ShiftedGrid
from tests.workers.collection import Collection
from tests.workers.driving import step
from workers.runner import Outcome

ALGORITHM = {"type": "auto", "epsilon": 1.0, "clusters": 2}


def test_it_reserves_posts_and_says_what_it_ran(collection: Collection) -> None:
    job_id = collection.submit(algorithm=ALGORITHM, epsilon_nano=NANO, target_reports=400)
    assert collection.balance().reserved_nano == NANO
    assert step(collection, start=registry.start) is Outcome.COLLECTING
    asked = collection.open_round()
    assert asked is not None
    ahead = forecast(Auto(1.0, 2), n_features=1, expected_reports=400)
    assert collection.balance().posted_nano == ahead.epsilon_nano
    collection.answer(asked, 400)
    assert step(collection, start=registry.start) is Outcome.SUCCEEDED
    assert collection.job(job_id).state == JobState.SUCCEEDED
    assert collection.balance().reserved_nano == 0
    document = collection.document(job_id)
    choice = choose(Auto(1.0, 2), 1, 400)
    assert document["algorithm"] == ALGORITHM
    assert document["model"]["diagnostics"]["chosen"]["reason"] == choice.reason
    assert document["model"]["diagnostics"]["chosen"]["algorithm"]["type"] == "shifted_grid"


def test_its_model_is_that_of_the_algorithm_it_chose_over_the_stored_tallies(collection: Collection) -> None:
    job_id = collection.submit(algorithm=ALGORITHM, epsilon_nano=NANO, target_reports=400)
    step(collection, start=registry.start)
    asked = collection.open_round()
    assert asked is not None
    collection.answer(asked, 400)
    step(collection, start=registry.start)
    (stored,) = collection.rounds_of(job_id)
    again = drive(
        registry.start(ShiftedGrid(1.0, 2), (Feature("x", 0.0, 10.0),), 400),
        lambda spec: Collected(spec, tally_of(collection, stored.id)),
    )
    assert collection.document(job_id)["model"]["sizes"] == again.sizes.tolist()


def tally_of(collection: Collection, round_id: str) -> Tally:
    """What the fold stored."""
    with collection.database.reading() as session:
        packed = session.get_one(Round, round_id, options=[undefer(Round.tally)]).tally
    assert packed is not None
    return Tally.from_bytes(packed)
