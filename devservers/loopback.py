"""Settings of HTTP clients for servers on this machine."""

import ssl

# Argument `verify` of clients for `http://127.0.0.1`. It trusts no certificate, so a client with it cannot use TLS.
# The default of httpx loads all certificate authorities, which takes 23 ms of CPU time for each client.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
