# The proxy workers: the wire engine, the recorder and the replayer. Build from the repository's root:
#   docker build -f deploy/proxy.Dockerfile -t playhead-proxy .
FROM python:3.13-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.9 /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --extra proxy --extra store --no-install-project
COPY calls calls
COPY store store
COPY replay replay
COPY proxy proxy
RUN uv sync --frozen --no-default-groups --extra proxy --extra store --no-editable

FROM python:3.13-slim
RUN useradd --uid 10001 --home-dir /var/lib/playhead --create-home --shell /usr/sbin/nologin playhead
COPY --from=build --chown=root:root /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH PLAYHEAD_DATA=/var/lib/playhead PLAYHEAD_PART=proxy
USER 10001
WORKDIR /var/lib/playhead
VOLUME /var/lib/playhead
EXPOSE 8080
STOPSIGNAL SIGTERM
# A worker accepts connections or it is not healthy; what passes through it is nobody's business here.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8080), 2).close()"]
ENTRYPOINT ["playhead"]
CMD ["up"]
