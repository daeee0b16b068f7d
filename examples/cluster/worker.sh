#!/bin/sh
# Each further machine: sh examples/cluster/worker.sh ADDRESS_OF_THE_FIRST
set -eu
export RAY_AUTH_MODE=token  # machines need the token of the cluster
exec ray start "--address=$1:6379" --disable-usage-stats
