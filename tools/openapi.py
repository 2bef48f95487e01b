"""Print the OpenAPI document: `python -m tools.openapi`."""

import sys

from models.database.engine import Database
from runtime.settings import Settings
from service.api.openapi.document import canonical, document
from service.app import create_app


def main() -> None:
    """Print the OpenAPI document of a gateway with default settings."""
    defaults = {name: field.get_default() for name, field in Settings.model_fields.items()}
    unconnected = Database("postgresql+psycopg:///")  # the document needs no connection
    app = create_app(Settings.model_construct(**defaults), unconnected)
    sys.stdout.write(canonical(document(app)))


if __name__ == "__main__":
    main()
