# The server's image: gateway, worker and migrations, by the command it is given.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# Every wheel of the lock, each held to its hash. What follows installs from these alone, without a network,
# and takes only what the server needs: the development tools stay behind in this stage.
COPY requirements.lock ./
RUN pip download --quiet --require-hashes --only-binary :all: --no-deps --dest /wheels --requirement requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY sdk/python sdk/python
COPY models models
COPY migrations migrations
COPY clustering clustering
COPY workers workers
COPY service service
COPY audit audit
COPY demo demo
# The version of what is installed is that of these sources, and everything else comes from /wheels alone.
# hadolint ignore=DL3013
RUN pip wheel --quiet --no-index --find-links /wheels --no-deps --wheel-dir /wheels ./sdk/python . \
    && python -m venv --without-pip /opt/sfumato \
    && pip --python /opt/sfumato/bin/python install --quiet --no-index --find-links /wheels sfumato-server

# Kernels for every machine of this family, so that no worker's first start waits for the compiler. The path of the
# sources is part of what they are kept by: it is the same in the stage below.
RUN /opt/sfumato/bin/sfumato worker --warm --into /opt/sfumato/share/sfumato/kernels

FROM python:${PYTHON_VERSION}-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/sfumato --create-home sfumato
COPY --from=build /opt/sfumato /opt/sfumato
# Runs with a read-only root: what is written goes to /var/lib/sfumato (the embedded database) and /tmp (caches).
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
