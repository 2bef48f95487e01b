"""Write openapi/vectors again: python -m tests.vectors"""

from tests.vectors.files import DIRECTORY, rendered

for name, text in rendered().items():
    (DIRECTORY / name).write_text(text)
    print(f"{DIRECTORY.name}/{name}: {len(text):,} bytes")
