# Copath in a container: one process, no root, nothing that builds or downloads. Needs BuildKit only for speed, not for its result.
#
#   docker build --build-arg GIT_SHA="$(git rev-parse HEAD)" --tag copath .
#   docker run --rm --publish 127.0.0.1:3100:3100 copath                                    # the demo
#   docker run --rm --publish 127.0.0.1:3100:3100 --read-only --tmpfs /tmp --volume copath:/var/lib/copath \
#     --volume "$PWD/config.yaml:/etc/copath/config.yaml:ro" --stop-timeout 160 copath serve --config /etc/copath/config.yaml

# The same for both stages. Name a mirror of it here, or the digest that you looked at: --build-arg BASE=python@sha256:...
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build

WORKDIR /build
COPY requirements.lock ./
# Every dependency comes ready built and with the hash that it had when it was pinned: no compiler is needed, here or anywhere.
RUN python -m venv --without-pip /opt/copath \
    && pip --python /opt/copath/bin/python install --no-cache-dir --require-hashes --only-binary=:all: --no-deps -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY migrations ./migrations
# What builds the wheel goes again, with what it alone has need of.
RUN pip --python /opt/copath/bin/python install --no-cache-dir --no-deps --no-build-isolation . \
    && pip --python /opt/copath/bin/python uninstall --yes hatchling editables pathspec pluggy trove-classifiers

FROM ${BASE}

ARG GIT_SHA=unknown
LABEL org.opencontainers.image.title="Copath" \
      org.opencontainers.image.description="Inclusion proofs of EVM transactions, receipts and logs over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${GIT_SHA}"

# The base brings a pip of its own.
RUN python -m pip uninstall --yes pip \
    && install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/copath
COPY --from=build /opt/copath /opt/copath

ENV PATH=/opt/copath/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    COPATH_BIND_HOST=0.0.0.0 \
    COPATH_GIT_SHA=${GIT_SHA}

# Relative paths of a configuration (copath.db, blocks) are below this. Beside it only /tmp is written to, by the builder processes.
WORKDIR /var/lib/copath
# A number, since Kubernetes cannot tell whether a name is root.
USER 10001:10001
EXPOSE 3100
STOPSIGNAL SIGTERM
# With another port in the configuration file set COPATH_BIND_PORT to it too; with TLS in it, override this. Kubernetes ignores it,
# and so do builders that write the OCI format (buildah, podman: --format docker keeps it).
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('COPATH_BIND_PORT') or 3100), timeout=3); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]
# No shell in between: signals reach the process that knows what to do with them.
ENTRYPOINT ["copath"]
CMD ["serve"]
