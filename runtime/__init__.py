"""Process-wide facilities of gateways and workers: settings, logs, metrics, traces, signals between processes.

Settings enter from environment variables. Log lines, metrics, spans and messages over Redis or a named pipe leave.
The package uses no database and knows no domain object.
"""
