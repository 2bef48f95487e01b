"""`python -m tests.workers.toy_worker`: a real worker that runs the toy plan; `TOY` holds its fields as JSON."""

import json
import os

from tests.workers.toy import Toy
from workers.__main__ import main

if __name__ == "__main__":
    fields = json.loads(os.environ.get("TOY", "{}"))
    if "draws" in fields:
        fields["draws"] = tuple(tuple(draw) for draw in fields["draws"])
    main(start=Toy(**fields))
