"""The command line `sfumato`.

The commands read their arguments, the SFUMATO_* settings, and local files. They start processes of the service,
call its HTTP API, or change the database directly. They print plain text, tables or JSON.
"""
