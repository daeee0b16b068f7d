#!/bin/sh
# The first machine: sh examples/cluster/head.sh
set -eu
exec ray start --head --port=6379 --disable-usage-stats
