#!/bin/sh
# vLLM's router (pip install vllm-router) in front of several `glimt serve`, whose addresses follow:
#   examples/routing/vllm-router.sh http://127.0.0.1:8001 http://127.0.0.1:8002 http://127.0.0.1:8003
set -eu

# power_of_two takes the less busy of two servers drawn at random. cache_aware, the router's default, prefers the server that has seen the
# same beginning, which saves its computation where conversations are long.
#
# A request that a server refuses or breaks off before its answer begins is asked again, of another one. Servers are asked for their
# health every two seconds, so that one that drains or has died is left out.
exec "${VLLM_ROUTER:-vllm-router}" \
    --host 127.0.0.1 --port "${PORT:-8000}" \
    --policy "${POLICY:-power_of_two}" \
    --retry-max-retries 3 --retry-initial-backoff-ms 50 \
    --health-check-interval-secs 2 --health-failure-threshold 1 --health-success-threshold 1 \
    --cb-failure-threshold 1 --cb-success-threshold 1 --cb-timeout-duration-secs 5 \
    --request-timeout-secs 620 \
    --prometheus-port "${METRICS_PORT:-29000}" \
    --worker-urls "$@"
