# glimt as a server: docker build -t glimt . && docker run --rm -p 8080:8080 -e GLIMT_API_KEY=... glimt
# docs/routing.md has the flags for GPUs and models.

FROM rust:1.89-slim-trixie AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --bin glimt

FROM debian:trixie-slim
# Vulkan's loader, and the drivers for AMD, Intel and software. NVIDIA's come from the host, by its container toolkit, and want the two
# libraries behind them. Versions are those of the distribution, which keeps them stable.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates curl libegl1 libvulkan1 libxext6 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 glimt
COPY --from=build /source/target/release/glimt /usr/local/bin/glimt

# What NVIDIA's container toolkit brings in: Vulkan is among the graphics, not with what CUDA needs.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility

USER 10001
WORKDIR /home/glimt
EXPOSE 8080
# The model may take minutes to load, in which /health has status 503.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8080/health"]
# SIGTERM begins the drain, for which docker waits only 10 seconds unless it is told: docker stop --time 90
STOPSIGNAL SIGTERM
ENTRYPOINT ["glimt"]
CMD ["serve", "--host", "0.0.0.0", "--drain", "60"]
