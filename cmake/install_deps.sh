#!/bin/sh
# Installs the Debian packages that building tidepool needs and that are missing, and says which.
# Does nothing, and needs no network, when all are there.
#
#   cmake/install_deps.sh [further packages...]
set -eu

packages="g++ cmake ninja-build pkg-config libabsl-dev libxxhash-dev liburing-dev $*"

if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian system; please see to the equivalents of: $packages" >&2
  exit 0
fi

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
echo "Installing Debian packages:$missing"
$sudo apt-get update -q
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
