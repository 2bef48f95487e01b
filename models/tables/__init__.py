"""Tables of the database: columns, constraints, indexes and states, without functions that change rows.

All packages of `models` import these modules; they import only column types and the SDK's specs. Their metadata is the
schema that the migrations must produce.
"""
