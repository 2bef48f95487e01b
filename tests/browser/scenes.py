"""A gateway with a prepared database and without a worker, so that pages always look the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from devservers.loopback import NO_TLS
from models import encryption
from models.database.engine import Database
from models.database.schema import migrate
from models.identity import keys, tenants
from models.ledger.ledger import head
from models.ledger.ledger import page as ledger_page
from models.tables.identity import Scope
from models.tables.ledger import LedgerEntry
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature
from tests.service.api import Api, finish
from tests.service.processes import running

EUROPE = (Feature("longitude", -10.0, 30.0, "degrees"), Feature("latitude", 35.0, 60.0, "degrees"))
WORLD = (Feature("longitude", -180.0, 180.0, "degrees"), Feature("latitude", -90.0, 90.0, "degrees"))
LUNCH = (Feature("east", 0.0, 10.0, "km"), Feature("north", 0.0, 10.0, "km"))
ODD = "<b>bold</b> &amp; שלום עולם {{ 7 * 7 }}"  # the service refuses names with invisible characters


@dataclass
class Scene:
    """A gateway with the ids of its objects by name."""

    url: str
    secret: str
    api: Api
    database: Database
    ids: dict[str, str] = field(default_factory=dict)


@contextmanager
def gateway_alone(home: Path, database_url: str = "", **settings: str) -> Iterator[Scene]:
    """Start a gateway without a worker, with its own database and an admin key."""
    home.mkdir(exist_ok=True)
    database_url = database_url or f"sqlite:///{home / 'sfumato.db'}"
    migrate(database_url)
    database = Database(database_url)
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, "default", now=database.clock())
        _, secret = keys.create_key(session, owner.id, name="office", scopes=[Scope.ADMIN], now=database.clock())
    given = {
        "SFUMATO_DATABASE_URL": database_url,
        "SFUMATO_RECORDS_KEY": encryption.encode_key(encryption.new_secret()),
    } | settings
    try:
        with (
            running(home, "gateway", "--port", "0", **given) as service,
            httpx.Client(base_url=service.url(), timeout=120, verify=NO_TLS) as http,
        ):
            yield Scene(service.url(), secret, Api(http, database, secret), database)
    finally:
        database.close()


def wire(features: tuple[Feature, ...]) -> list[dict[str, Any]]:
    """Return features in the format of the API."""
    return [{"name": f.name, "lower": f.lower, "upper": f.upper, "unit": f.unit} for f in features]


def hills(
    features: tuple[Feature, ...], tops: list[list[float]], shape: tuple[int, int], wide: float = 0.08
) -> ClusterModel:
    """Return a label map of two features with people around the given positions."""
    place = np.stack(np.meshgrid(*((np.arange(n) + 0.5) / n for n in shape), indexing="ij"), axis=-1)
    tops_scaled = np.array(
        [[(value - f.lower) / (f.upper - f.lower) for value, f in zip(top, features, strict=True)] for top in tops]
    )
    away = ((place[:, :, None, :] - tops_scaled) ** 2).sum(axis=-1)
    weights = 1 / (np.arange(len(tops)) + 1.5)
    density = (np.exp(-away / (2 * wide**2)) * weights).sum(axis=-1) + 1e-4
    density /= density.sum()
    labels = away.argmin(axis=-1)
    sizes = np.bincount(labels.ravel(), weights=density.ravel(), minlength=len(tops))
    spans = np.array([f.upper - f.lower for f in features])
    return ClusterModel(
        type="label_map",
        features=features,
        sizes=sizes,
        size_errors=np.full(len(tops), 0.004),
        centroids=np.array(tops),
        centroid_errors=np.tile(0.012 * spans, (len(tops), 1)) * (1 + np.arange(len(tops)))[:, None] ** 0.5,
        label_map=labels,
        density=density,
        diagnostics={"n_reports": 20_000},
        privacy={"sizes": "post_processed", "density": "post_processed", "features": "public"},
    )


def flat(features: tuple[Feature, ...], n_clusters: int) -> ClusterModel:
    """Return a model with centroids on a diagonal."""
    part = (np.arange(n_clusters) + 0.5) / max(n_clusters, 1)
    lower, spans = (np.array([of(f) for f in features]) for of in (lambda f: f.lower, lambda f: f.upper - f.lower))
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=np.full(n_clusters, 1 / max(n_clusters, 1)),
        size_errors=np.full(n_clusters, 0.01),
        centroids=lower + part[:, None] * spans,
        privacy={"centroids": "post_processed"},
    )


def released(scene: Scene, name: str, model: ClusterModel, dataset_id: str = "", **dataset: Any) -> str:
    """Create a finished job with the model, in a new or the given dataset. Return its id."""
    many = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 3}
    algorithm = {"algorithm": many} if len(model.features) > 8 else {}  # a grid takes up to eight
    created = dataset_id or scene.api.dataset(name=name, features=wire(model.features), **dataset)["id"]
    job_id: str = scene.api.job(created, target_reports=20_000, **algorithm)["id"]
    finish(scene.database, job_id, model)
    scene.ids[name] = job_id
    return job_id


def long_ledger(scene: Scene, dataset_id: str, n_entries: int) -> None:
    """Extend a ledger to the given number of entries. Their hashes are not valid, which the test does not need."""
    with scene.database.transaction() as session:
        first = ledger_page(session, dataset_id, after_seq=0, limit=1)[0]
        columns = {column.key: getattr(first, column.key) for column in LedgerEntry.__table__.columns}
        for start in range(2, n_entries + 1, 10_000):
            rows = [
                columns | {"id": f"led_{dataset_id[-16:]}{i:010d}", "seq": i, "reference": f"g{i}"}
                for i in range(start, min(start + 10_000, n_entries + 1))
            ]
            session.execute(LedgerEntry.__table__.insert(), rows)
        head(session, dataset_id).seq = n_entries


def furnish(scene: Scene) -> None:
    """Create the objects that the screenshots of the documentation show."""
    api = scene.api
    europe = api.dataset(name="Commuters of Europe", features=wire(EUROPE), epsilon=6)["id"]
    lunch = api.dataset(name="Where people have lunch", features=wire(LUNCH), epsilon=4)["id"]
    clinic = api.dataset(name="Visits to the clinic", features=wire(LUNCH), epsilon=2, trust="central")["id"]
    towns = [[2.3, 48.9], [21.0, 52.2], [-3.7, 40.4], [12.5, 41.9]]
    model = hills(EUROPE, towns, (64, 40))
    released(scene, "europe", model, europe)
    later = hills(EUROPE, [towns[1], towns[0], towns[3]], (48, 30), wide=0.1)
    released(scene, "europe later", replace(later, sizes=later.sizes[::1]), europe)
    body = b"east,north\n" + b"".join(b"%d,%d\n" % (i % 10, (3 * i) % 10) for i in range(60))
    api.post(f"/datasets/{clinic}/records", content=body, headers={"content-type": "text/csv"})
    for epsilon in (0.75, 0.5, 1.25):
        opened = api.round(europe, epsilon=epsilon)["id"]
        api.post(f"/rounds/{opened}/close?allow_empty=true")
    created = api.post(
        "/webhooks", {"url": "https://hooks.example.com/sfumato", "event_types": ["job.succeeded", "job.failed"]}
    )
    api.made("/keys", {"name": "tablet at the counter", "scopes": ["device"], "dataset_id": lunch})
    scene.ids |= {
        "ds": europe,
        "lunch": lunch,
        "clinic": clinic,
        "round": api.round(lunch, epsilon=1, target_reports=5000)["id"],
        "job": api.job(lunch, target_reports=5000)["id"],
        "webhook": created.json()["id"],
    }
