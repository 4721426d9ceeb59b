# S3 over a directory: versitygw (Apache-2.0) with its posix backend, on our base so that it can be checked and runs
# as nobody in particular. A directory below /data is a bucket.
ARG VERSITYGW_IMAGE=ghcr.io/versity/versitygw:v1.8.0
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${VERSITYGW_IMAGE} AS versitygw

FROM ${BASE_IMAGE}
COPY --from=versitygw /usr/local/bin/versitygw /usr/local/bin/versitygw
COPY --chmod=755 deploy/healthy.py /usr/local/bin/healthy
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp quire \
    && mkdir -p /data/quire && chown -R quire:quire /data
USER quire
ENTRYPOINT ["versitygw"]
CMD ["--port", ":7070", "--health", "/health", "posix", "/data"]
