# Image of the server. The command selects gateway, worker or migration. CONTRIBUTING.md explains how to renew the digest.
ARG BASE_IMAGE=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${BASE_IMAGE} AS build
# Both are empty by default, and pip then uses its index. `make image` mounts a folder of wheels instead.
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# Install the packages that the server and its demo need, and check their hashes. The lock's other packages are
# development tools. Our own packages are built with the lock's setuptools, which remains in this stage.
COPY requirements.lock pyproject.toml ./
COPY tools/lock.py tools/
COPY sdk/python/pyproject.toml sdk/python/
RUN python3 tools/lock.py --extra demo > /tmp/server.lock \
    && python3 tools/lock.py --package setuptools > /tmp/build.lock \
    && python3 -m venv --without-pip /opt/sfumato \
    && pip --python /opt/sfumato/bin/python install --quiet --no-compile --require-hashes --only-binary :all: \
        --no-deps --requirement /tmp/server.lock \
    && pip install --quiet --no-compile --require-hashes --only-binary :all: \
        --no-deps --requirement /tmp/build.lock --target /opt/build

COPY README.md LICENSE ./
COPY sdk/python sdk/python
COPY connections connections
COPY runtime runtime
COPY models models
COPY migrations migrations
COPY clustering clustering
COPY workers workers
COPY service service
COPY shuffler shuffler
COPY audit audit
COPY demo demo
COPY devservers devservers
# hadolint ignore=DL3013
RUN PYTHONPATH=/opt/build pip --python /opt/sfumato/bin/python install --quiet --no-compile --no-index --no-deps \
        --no-build-isolation ./sdk/python .

# Remove what the server never reads from the packages. Bytecode is compiled only for the modules that it loads.
COPY tools/slim_image.py tools/
RUN /opt/sfumato/bin/python tools/slim_image.py

# Compile the kernels for all machines of this processor family, so that the first start of a worker needs no compiler.
# The cache key contains the path of the sources, so the path must be the same in the final stage.
RUN /opt/sfumato/bin/sfumato worker --warm --into /opt/sfumato/share/sfumato/kernels

# The shuffler, which another organisation runs: `docker build --target shuffler`.
FROM ${BASE_IMAGE} AS shuffler
RUN groupadd --gid 10001 sfumato \
    && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/sfumato --create-home --skel /dev/null sfumato
COPY --from=build /opt/sfumato /opt/sfumato
ENV PATH=/opt/sfumato/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/sfumato
VOLUME /var/lib/sfumato
EXPOSE 8100
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8100/healthz', timeout=2)"]
ENTRYPOINT ["sfumato"]
CMD ["shuffler", "run", "--host", "0.0.0.0"]

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 sfumato \
    && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/sfumato --create-home --skel /dev/null sfumato
COPY --from=build /opt/sfumato /opt/sfumato
# The container runs with a read-only root. It writes to /var/lib/sfumato (embedded database) and /tmp (caches).
ENV PATH=/opt/sfumato/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SFUMATO_HOME=/var/lib/sfumato \
    SFUMATO_HOST=0.0.0.0 \
    SFUMATO_PORT=8000 \
    NUMBA_CACHE_DIR=/tmp/numba \
    MPLCONFIGDIR=/tmp/matplotlib
USER 10001
WORKDIR /var/lib/sfumato
VOLUME /var/lib/sfumato
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['SFUMATO_PORT']}/healthz\", timeout=2)"]
ENTRYPOINT ["sfumato"]
CMD ["serve"]
