# One image for every process of Hindcast; the command says which: serve, worker, collect, migrate.
# docker-compose.yml starts the example's pipeline from it too, by another entry point.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock pyproject.toml ./
# uv, as everything else, in the version and with the hashes of the lock file.
RUN awk '/^uv==/ {inside = 1} inside && !/^ *#/ {print} inside && !/\\$/ {exit}' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes -r uv.lock
COPY . .
# The build brings its own Node.js to fetch the browser assets.
RUN uv build --quiet --wheel --out-dir /dist
RUN python -m venv --without-pip /opt/hindcast \
    && VIRTUAL_ENV=/opt/hindcast uv pip install --quiet --compile-bytecode --constraints requirements.lock /dist/*.whl

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/hindcast --create-home hindcast
COPY --from=build /opt/hindcast /opt/hindcast
ENV PATH=/opt/hindcast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# hindcast.toml and the agent code that it names are mounted here, read-only.
WORKDIR /etc/hindcast
USER hindcast
ENTRYPOINT ["hindcast"]
