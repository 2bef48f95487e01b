"""Results: what a job released, written once, free to read for ever."""

import json
import zlib
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, Session, mapped_column, undefer

from models.db import Base, canonical_json
from models.errors import JobNotFinished


class Result(Base):
    """A job's released model and how it came about."""

    __tablename__ = "results"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    software_version: Mapped[str] = mapped_column(String(40), comment="what computed it")
    packed: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, comment="the document, canonical JSON, deflated")

    @property
    def document(self) -> dict[str, Any]:
        """The released document as plain JSON values."""
        value: dict[str, Any] = json.loads(zlib.decompress(self.packed))
        return value


def add(session: Session, job_id: str, document: dict[str, Any], *, software_version: str, now: int) -> Result:
    """Keep a job's one result; the primary key refuses a second."""
    result = Result(
        job_id=job_id,
        created_at=now,
        software_version=software_version,
        packed=zlib.compress(canonical_json(document).encode()),
    )
    session.add(result)
    session.flush()
    return result


def get(session: Session, job_id: str) -> Result:
    """A job's result; raises JobNotFinished where there is none."""
    result = session.get(Result, job_id, options=[undefer(Result.packed)])
    if result is None:
        raise JobNotFinished("this job has no result yet")
    return result
