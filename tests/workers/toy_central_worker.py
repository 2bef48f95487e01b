"""`python -m tests.workers.toy_central_worker`: a real worker that runs the toy; `TOY` holds its fields as JSON."""

import json
import os

from tests.workers.toy_central import ToyCentral
from workers.__main__ import main

if __name__ == "__main__":
    fields = json.loads(os.environ.get("TOY", "{}"))
    main(run_central=ToyCentral(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}))
