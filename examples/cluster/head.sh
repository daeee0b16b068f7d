#!/bin/sh
# The first machine: sh examples/cluster/head.sh
set -eu
export RAY_AUTH_MODE=token  # machines need the token of the cluster
exec ray start --head --port=6379 --disable-usage-stats
