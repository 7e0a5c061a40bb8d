#!/bin/bash
# install.sh - install Debian packages on this machine, those that are missing.
#
# Usage: install.sh PACKAGE..
# Exit: 0 when all are there.
set -euo pipefail
. "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/lab-lib.sh"
need_root
need_host_pkgs "$@"
