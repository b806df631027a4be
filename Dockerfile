# syntax=docker/dockerfile:1
# CPU:  docker build -t spacedkd .
# GPU:  docker build -t spacedkd:gpu --build-arg TORCH_INDEX=https://pypi.org/simple .
#       (torch's wheels there are built for CUDA and bring its libraries; the host needs a driver, nothing else.
#       For another CUDA give the address of its wheels, https://download.pytorch.org/whl/...)
# Run:  docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" spacedkd train --data digits --width 16 --interval 1.5ep
#       docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" --gpus all --shm-size 8g spacedkd:gpu train ...

ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/spacedkd
ENV PATH=/opt/spacedkd/bin:$PATH
WORKDIR /src
# torch changes less often than the code, and is by far the largest: a layer of its own
COPY constraints.txt ./
RUN pip install -c constraints.txt --extra-index-url "${TORCH_INDEX}" torch torchvision
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# further extras, such as EXTRAS=tensorboard,onnx
ARG EXTRAS=""
RUN pip install -c constraints.txt --extra-index-url "${TORCH_INDEX}" ".[train${EXTRAS:+,${EXTRAS}}]"

FROM python:${PYTHON}-slim
# OpenCV, which the corruptions use, and OpenMP, which torch uses
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 spacedkd
COPY --from=build /opt/spacedkd /opt/spacedkd
# whoever runs it: caches go where everybody may write
ENV PATH=/opt/spacedkd/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER spacedkd
WORKDIR /work
ENTRYPOINT ["spacedkd"]
CMD ["--help"]
