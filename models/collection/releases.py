"""Releases of shuffled rounds: what they cost, their keys, and the round as devices receive it.

A shuffler sends all reports of a round in one batch, sealed and in random order. The cost of the batch towards the
service is a pair (epsilon, delta). It follows from the round's mechanism and from the number of honest reports.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from models.database.types import SCRUBBED, canonical_json, timestamp
from models.encryption import Keyring
from models.errors import Conflict
from models.tables.ledger import Kind, LedgerEntry
from models.tables.rounds import ReleaseTerms, Round, RoundKey
from sfumato.device.sealing import generate_round_key_pair
from sfumato.errors import InvalidSpec
from sfumato.privacy import shuffling
from sfumato.privacy.accountant import Accounting, Cost
from sfumato.privacy.accounting import ATTO, NANO, cost
from sfumato.privacy.shuffled_rounds import gaussian_cost
from sfumato.specs import RoundSpec

MU2_TOLERANCE = 10_000  # a step of a micro-epsilon changes mu^2 by less than this part


def release_cost(spec: RoundSpec, terms: ReleaseTerms, accounting: Accounting) -> Cost:
    """Return the cost of a release towards its observer, from the exact channel of the mechanism.

    mu^2 is 0 under additive accounting. Else delta is also delta_0 (`sfumato.privacy.shuffled_rounds`). Raise
    InvalidSpec if no report is honest, if no privacy blanket of the mechanism is known, or if no mu^2 covers it.
    """
    blanket, n, delta_atto = spec.mechanism.blanket(), terms.n_honest, terms.delta_atto
    mu2_pico = gaussian_cost(blanket, n, delta_atto)[0] if accounting == "gaussian" else 0
    return Cost(shuffling.epsilon(blanket, n, delta_atto), delta_atto, mu2_pico)


def increase(before: Iterable[Round], spec: RoundSpec, release: Cost) -> Cost:
    """Return the increase of a collection's shuffled cost by a round with this cost.

    Each member is the increase of its maximum over the draws. Under Gaussian accounting, mu^2 increases with the pair
    by at least its unit and the pair with mu^2, so that an entry of the ledger shows what its mu^2 belongs to.
    """
    earlier = [((each.spec.participation.lo, each.spec.participation.hi), _cost(each)) for each in before]
    rounds = [*earlier, ((spec.participation.lo, spec.participation.hi), release)]
    nano, atto, mu2 = (
        cost((interval, each[i]) for interval, each in rounds) - cost((interval, each[i]) for interval, each in earlier)
        for i in range(3)
    )
    if release.mu2_pico and (nano or atto or mu2):
        nano, mu2 = max(nano, 1), max(mu2, 1)
    return Cost(nano, atto, mu2)


def _cost(found: Round) -> Cost:
    return Cost(found.shuffled_nano or 0, found.shuffled_delta_atto or 0, found.shuffled_mu2_pico or 0)


# ---- keys ----


def create_key(session: Session, round_id: str, keyring: Keyring) -> bytes:
    """Create the HPKE key pair of a round, store the private key encrypted, and return the public key."""
    pair = generate_round_key_pair()
    stored = RoundKey(round_id=round_id)
    keyring.seal_row(stored, pair.private_key)
    session.add(stored)
    return pair.public_key


def open_key(session: Session, round_id: str, keyring: Keyring) -> bytes:
    """Return the HPKE private key of a round.

    Raise Conflict if it is deleted, RecordsKeyMissing, or RecordsUnreadable.
    """
    stored = session.get(RoundKey, round_id)
    if stored is None:
        raise Conflict("the key of this round was deleted with its reports")
    return keyring.open_row(stored)


def delete_keys(session: Session, round_ids: Select[str] | Sequence[str]) -> None:
    """Delete the private keys of rounds irrecoverably."""
    session.execute(
        delete(RoundKey).where(RoundKey.round_id.in_(round_ids)).execution_options(synchronize_session=False)
    )
    session.info[SCRUBBED] = True


# ---- the round as devices receive it ----


TERMS = ("min_batch", "honest_share", "hpke_public_key", "shuffled_epsilon", "shuffled_delta")


def published_round(found: Round) -> dict[str, Any]:
    """Return the members of a round that devices receive. They never change."""
    members = {
        "id": found.id,
        "collection_id": found.collection_id,
        "index": found.index,
        "epsilon": found.epsilon_nano / NANO,
        "keep_reports": found.keep_reports,
        "closes_at": timestamp(found.closes_at),
        "spec": found.spec_wire,
    }
    terms = published_terms(found)
    return members | ({"target_reports": found.target_reports} | terms if terms else {})


def published_terms(found: Round) -> dict[str, Any]:
    """Return the members about the release of a round; an empty dict if it has none."""
    terms = found.release
    if terms is None:
        return {}
    epsilon_nano, delta_atto, _ = _cost(found)
    values = (
        terms.min_batch,
        terms.honest_share_nano / NANO,
        b64encode(found.hpke_public_key or b"").decode(),
        epsilon_nano / NANO,
        delta_atto / ATTO,
    )
    return dict(zip(TERMS, values, strict=True))


def round_bytes(found: Round) -> bytes:
    """Return the round as devices receive it, to which sealed reports are bound: canonical JSON in UTF-8."""
    return canonical_json(published_round(found)).encode()


# ---- verification ----


def find_wrong_charge(session: Session, dataset_id: str) -> str:
    """Return why the shuffled charges of a dataset do not follow from its rounds, or an empty string.

    The cost of each round is computed again: delta at the stated epsilon, because floats of another machine may lead to
    an epsilon that differs by a micro-epsilon, and mu^2 to one in `MU2_TOLERANCE` for the same reason. Charges without
    a round close a budget after a restore.
    """
    shuffled = (LedgerEntry.shuffled_nano > 0) | (LedgerEntry.shuffled_delta_atto > 0)
    query = select(
        LedgerEntry.reference, LedgerEntry.shuffled_nano, LedgerEntry.shuffled_delta_atto, LedgerEntry.mu2_pico
    )
    of_dataset = query.where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == Kind.CHARGE, shuffled)
    charges = {reference: Cost(nano, atto, mu2 or 0) for reference, nano, atto, mu2 in session.execute(of_dataset)}
    rounds = select(Round).where(Round.dataset_id == dataset_id, Round.min_batch.is_not(None))
    collections: dict[str, list[Round]] = {}
    for found in session.scalars(rounds.order_by(Round.collection_id, Round.index)):
        before = collections.setdefault(found.collection_id, [])
        if reason := _find_understated(found):
            return f"{found.id}: {reason}"
        expected = increase(before, found.spec, _cost(found))
        if charges.get(found.id, Cost(0, 0, 0)) != expected:
            return f"{found.id}: the charge differs from the cost of the round"
        before.append(found)
    return ""


def _find_understated(found: Round) -> str:
    """Return why the stated cost of a round is too small, or an empty string."""
    terms = found.release
    assert terms is not None  # noqa: S101 - for the type checker: the query selects shuffled rounds
    try:
        blanket = found.spec.mechanism.blanket()
        delta_atto = shuffling.delta(blanket, terms.n_honest, found.shuffled_nano or 0)
        mu2_pico = 0
        if found.shuffled_mu2_pico is not None:
            mu2_pico, _ = gaussian_cost(blanket, terms.n_honest, terms.delta_atto)
    except InvalidSpec as error:
        return str(error)
    if mu2_pico - mu2_pico // MU2_TOLERANCE > (found.shuffled_mu2_pico or 0):
        return "the stated mu^2 is too small"
    return "the stated delta is too small" if delta_atto > terms.delta_atto else ""
