#!/bin/sh
# The router of vLLM's production-stack in front of several `glimt serve`, whose addresses follow:
#   examples/routing/production-stack.sh http://127.0.0.1:8001 http://127.0.0.1:8002 http://127.0.0.1:8003
# It is in no registry, but comes with https://github.com/vllm-project/production-stack. PyPI's vllm-router is another program, which
# vllm-router.sh starts.
set -eu

backends="" models="" types=""
for url in "$@"; do
    backends="${backends:+$backends,}$url"
    # What the servers call the model: --alias, or the name of its file.
    models="${models:+$models,}${MODEL:-glimt}"
    types="${types:+$types,}chat"
done

# A server that cannot be reached is left out at once, and others are asked. A server that drains refuses with 503, which this router
# passes on, until a check of its health finds out. In Kubernetes it finds out by the readiness of pods.
exec "${VLLM_ROUTER:-vllm-router}" \
    --host 127.0.0.1 --port "${PORT:-8000}" \
    --service-discovery static --static-backends "$backends" --static-models "$models" --static-model-types "$types" \
    --static-backend-health-checks --static-backend-health-check-interval 5 \
    --routing-logic "${POLICY:-roundrobin}" \
    --max-instance-failover-reroute-attempts 2 \
    --engine-stats-interval 5
