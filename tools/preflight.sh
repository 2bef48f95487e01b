#!/bin/sh
# Check that programs are on this machine: tools/preflight.sh [--install] PROGRAM...
#
# Programs: chromium, git, go, nginx, java (17 or newer), javac, mvn, node (20 or newer), npm, pgbouncer, promtool.
# With --install, and as root on Debian, install the missing ones from Debian's packages.
# Exit with 1, and name each missing program and how to get it, if one is missing or too old.
set -eu

package_of() {
    case $1 in
    go) echo golang-go ;;
    java) echo default-jre-headless ;;
    javac) echo default-jdk-headless ;;
    mvn) echo maven ;;
    nginx) echo nginx-light ;;
    node) echo nodejs ;;
    promtool) echo prometheus ;;
    *) echo "$1" ;;
    esac
}

# Print the major version of a program.
major_of() {
    case $1 in
    java) java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 ;;
    node) node --version | sed 's/^v\([0-9]*\).*/\1/' ;;
    esac
}

is_there() {
    command -v "$1" >/dev/null 2>&1
}

install=false
if [ "${1:-}" = --install ]; then
    install=true
    shift
fi

packages=""
for program in "$@"; do
    is_there "$program" || packages="$packages $(package_of "$program")"
done
if [ -n "$packages" ] && $install && is_there apt-get; then
    echo "installing Debian packages:$packages"
    # shellcheck disable=SC2086  # one word for each package
    { apt-get -o Acquire::Retries=3 update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends $packages; } >/dev/null || true
fi

status=0
for program in "$@"; do
    case $program in
    java) least=17 ;;
    node) least=20 ;;
    *) least=0 ;;
    esac
    if ! is_there "$program"; then
        echo "$program is missing: apt-get install $(package_of "$program")" >&2
        status=1
    elif [ "$least" != 0 ] && [ "$(major_of "$program")" -lt "$least" ]; then
        echo "$program $(major_of "$program") is too old: version $least or newer is required" >&2
        status=1
    fi
done
exit $status
