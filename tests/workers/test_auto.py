"""A job of type `auto` reserves its epsilon, runs the algorithm that it chose, and charges the forecast cost."""

from sqlalchemy.orm import undefer

from clustering import registry
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from models.tables.jobs import JobState
from models.tables.rounds import Round
from sfumato.forecast import choose, forecast
from sfumato.privacy.accounting import NANO
from sfumato.specs import Auto, Feature, ShiftedGrid
from tests.workers.collection import Collection
from tests.workers.driving import step
from workers.job_runner import ClaimOutcome

ALGORITHM = {"type": "auto", "epsilon": 1.0, "clusters": 2}


def test_auto_runs_the_algorithm_that_it_chose(collection: Collection) -> None:
    job_id = collection.submit(algorithm=ALGORITHM, epsilon_nano=NANO, target_reports=400)
    assert collection.balance().reserved_nano == NANO
    assert step(collection, start=registry.start) is ClaimOutcome.COLLECTING
    opened = collection.get_open_round()
    expected = forecast(Auto(1.0, 2), n_features=1, expected_reports=400)
    assert collection.balance().charged_nano == expected.epsilon_nano
    collection.answer(opened, 400)
    assert step(collection, start=registry.start) is ClaimOutcome.SUCCEEDED
    assert collection.job(job_id).state == JobState.SUCCEEDED
    assert collection.balance().reserved_nano == 0
    document = collection.document(job_id)
    assert document["algorithm"] == ALGORITHM
    chosen = document["model"]["diagnostics"]["chosen"]
    assert (chosen["algorithm"]["type"], chosen["reason"]) == ("shifted_grid", choose(Auto(1.0, 2), 1, 400).reason)
    with collection.database.reading() as session:
        packed = session.get_one(Round, opened.id, options=[undefer(Round.tally)]).tally
    assert packed is not None
    bare = registry.start(ShiftedGrid(1.0, 2), (Feature("x", 0.0, 10.0),), 400)
    plan = checking_law(counting_outside(bare, opens_counting=True))
    model = drive(plan, lambda spec: Collected(spec, Tally.from_bytes(packed)))
    assert document["model"]["sizes"] == model.sizes.tolist()
