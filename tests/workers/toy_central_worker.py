"""`python -m tests.workers.toy_central_worker`: a real worker that runs the toy; `TOY` holds its fields as JSON."""

import json
import os

from tests.workers.toy_central import ToyCentral
from workers import child
from workers.__main__ import main

# Its computing process imports this file as well. The toy calls no kernel that takes long to load.
child._warm = lambda: None

if __name__ == "__main__":
    fields = json.loads(os.environ.get("TOY", "{}"))
    main(run_central=ToyCentral(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}))
