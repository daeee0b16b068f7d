# docker build --target cpu --build-arg TORCH_INDEX=... -t quire:cpu .
# docker build --target cuda -t quire:cuda .
# docker run --rm -p 8000:8000 quire:cpu                    serves the demo models
# docker run --rm --gpus all -p 8000:8000 -v /models:/models quire:cuda /models/some-model
#
# The target cpu holds no CUDA: it wants --build-arg TORCH_INDEX=<address of a package index with CPU builds of torch>
# wherever the usual index has CUDA builds (Linux on x86-64).

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
ARG TORCH_INDEX=""
WORKDIR /src
RUN python -m venv /opt/quire
ENV PATH=/opt/quire/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Dependencies first: this layer is rebuilt only when they change.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > dependencies.txt \
    && pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -r dependencies.txt
COPY . .
RUN pip install --no-deps .

FROM python:${PYTHON_VERSION}-slim AS runtime
# A compiler, so that the fast operations can be built at first use. Any version of it does.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 quire
COPY --from=build /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/quire
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["platform", "serve", "--host", "0.0.0.0"]

FROM runtime AS cpu
RUN python -c 'import sys, torch; sys.exit(torch.version.cuda and "This torch is a CUDA build. For the target cpu, name an \
index with CPU builds (--build-arg TORCH_INDEX=...), or build the target cuda.")'

FROM runtime AS cuda
# The wheels of torch bring the CUDA libraries; the host lends the driver.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
