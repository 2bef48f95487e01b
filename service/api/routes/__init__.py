"""Routes, one module per resource. A route parses the request, calls one function of `models`, and returns."""
