# An image with Paceline and all its simulators:
#   docker build -t paceline .                              PyTorch for CPUs
#   docker build -t paceline --build-arg DEVICE=cuda .      PyTorch with CUDA; run it with --gpus all
#   docker run --rm --shm-size 2g -v "$PWD/runs:/work/runs" paceline train cartpole
FROM python:3.11-slim

# g++ is for --compute.compile, the libraries are for rendering.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libegl1 libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

ARG DEVICE=cpu
WORKDIR /opt/paceline
COPY requirements.lock ./
RUN case "$DEVICE" in \
        cpu) pip install --no-cache-dir --constraint requirements.lock torch --index-url https://download.pytorch.org/whl/cpu ;; \
        cuda) pip install --no-cache-dir --constraint requirements.lock torch ;; \
        *) echo "DEVICE is $DEVICE; allowed: cpu, cuda" >&2; exit 2 ;; \
    esac

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY paceline paceline
COPY benchmarks benchmarks
RUN pip install --no-cache-dir --constraint requirements.lock '.[envs,video,onnx]'

WORKDIR /work
ENTRYPOINT ["paceline"]
CMD ["--help"]
