"""What ends the demo with a sentence instead of a traceback."""


class DemoError(Exception):
    """The message is a sentence for the person at the terminal."""


class ServiceFailed(DemoError):
    """The demo's own service did not start, or ended; the message ends with its last lines."""
