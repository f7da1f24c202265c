# Shared by the set-up scripts: where the checkout is, and how to speak.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
CACHE=.cache
mkdir -p "$CACHE"

# The downloaders bring certificates of their own; a machine behind a company's proxy needs the system's as well.
SYSTEM_CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
if [ -r "$SYSTEM_CERTIFICATES" ]; then
    export SSL_CERT_FILE="${SSL_CERT_FILE:-$SYSTEM_CERTIFICATES}"
    export PIP_CERT="${PIP_CERT:-$SSL_CERT_FILE}" NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$SSL_CERT_FILE}"
fi

say() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[2m==>\033[0m %s\n' "$*"; else printf '==> %s\n' "$*"; fi
}
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# True where a system package can be installed without asking anyone.
may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "installing system packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" </dev/null >"$CACHE/apt.log" 2>&1 ||
        { apt-get update </dev/null >>"$CACHE/apt.log" 2>&1 &&
            apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" </dev/null >>"$CACHE/apt.log" 2>&1; }
}
