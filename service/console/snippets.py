"""Code that submits a job again: with curl, in Python and in TypeScript."""

import json
from collections.abc import Mapping

from service.console.forms import Json

_CURL = """curl "$SFUMATO_URL/v1/jobs" \\
  -H "Authorization: Bearer $SFUMATO_KEY" \\
  -H "Content-Type: application/json" \\
  -d {body}"""

_PYTHON = """from sfumato import Client

with Client() as client:  # reads SFUMATO_URL and SFUMATO_KEY
    job = client.submit_job(
        {dataset_id!r},
        {algorithm!r},{options}
    )
    print(job.id)"""

_TYPESCRIPT = """import {{ Client }} from "@sfumato-dp/sdk/client";

const client = new Client({{ url: process.env.SFUMATO_URL, key: process.env.SFUMATO_KEY }});
const job = await client.createJob({body});
console.log(job.id);"""


def job_request(job: Json) -> Json:
    """Return the API request that submits a job again, without parameters that are null."""
    request: Json = {"dataset_id": job["dataset_id"]}
    request["algorithm"] = {name: value for name, value in job["algorithm"].items() if value is not None}
    if job["features"] is not None:
        request["features"] = job["features"]
    if job["round_ids"]:
        request["round_ids"] = job["round_ids"]
    elif job["target_reports"] is not None:
        request |= {name: job[name] for name in ("target_reports", "min_reports", "collect_seconds")}
    return request


def snippets(job: Json) -> Mapping[str, str]:
    """Return code that submits the job again, by the name of the language. The code contains no key."""
    request = job_request(job)
    rest = {name: value for name, value in request.items() if name not in ("dataset_id", "algorithm")}
    return {
        "curl": _CURL.format(body="'" + json.dumps(request).replace("'", r"'\''") + "'"),
        "Python": _PYTHON.format(
            dataset_id=request["dataset_id"],
            algorithm=request["algorithm"],
            options="".join(f"\n        {name}={value!r}," for name, value in rest.items()),
        ),
        "TypeScript": _TYPESCRIPT.format(body=json.dumps(request, indent=2)),
    }
