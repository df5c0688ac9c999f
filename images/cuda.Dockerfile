# The decision server on the AWS llama.cpp container for NVIDIA GPUs (CUDA, x86-64).
# How to build it: docs/how-to/build-images.md. Why it is built like this: docs/explanation/images.md.

# Pinned by digest: REGISTRY/REPOSITORY@sha256:DIGEST.
ARG BASE_IMAGE

FROM ${BASE_IMAGE} AS build
ARG LLAMA_CPP_BUILD
ARG INTERFACE
ARG SOURCE_DATE_EPOCH=1767225600
COPY images/assemble.py /source/images/
COPY runtime /source/runtime
# The base's `python3` may be the system's own, which is older than 3.11.
RUN for python in python3.12 python3.13 python3.11 python3; do \
      if command -v "$python"; then break; fi; \
    done \
 && "$python" /source/images/assemble.py --source /source --llama-cpp "$LLAMA_CPP_BUILD" --interface "$INTERFACE" \
      --epoch "$SOURCE_DATE_EPOCH"

FROM ${BASE_IMAGE}
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG LLAMA_CPP_BUILD
ARG INTERFACE
ARG SOURCE_REVISION
ARG SOURCE_URL
ARG VERSION
LABEL org.opencontainers.image.title="steelyard decision server, CUDA" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="${SOURCE_URL}" \
      org.opencontainers.image.revision="${SOURCE_REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      steelyard.llama-cpp="${LLAMA_CPP_BUILD}" \
      steelyard.llama-cpp-interface="${INTERFACE}"
# The base's llama.cpp; where SageMaker puts the model, and what its health check reaches. On the GPU, or no start.
ENV LLAMA_CPP_BUILD="${LLAMA_CPP_BUILD}" \
    LLAMA_CPP_LIB_PATH=/opt/llama.cpp/bin \
    STEELYARD_MODEL=/opt/ml/model \
    STEELYARD_HOST=0.0.0.0 \
    STEELYARD_GPU_LAYERS=-1
COPY --from=build /opt/steelyard /opt/steelyard
EXPOSE 8080
# SageMaker appends `serve`.
ENTRYPOINT ["/opt/steelyard/bin/python", "-I", "-u", "-m", "steelyard_runtime.http.serve"]
CMD ["serve"]
