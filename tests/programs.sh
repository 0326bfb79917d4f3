#!/bin/sh
# Install the programs that some tests need, where this is possible without a question: as root, or in CI by sudo, with
# apt-get. `make test PROGRAMS=no` leaves the machine as it is. Tests without their program are skipped and named at the end.
missing=""
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="chromium"
for program in openssl spamc; do command -v $program >/dev/null || missing="$missing $program"; done
[ -n "$missing" ] || exit 0

root=""
[ "$(id -u)" = 0 ] || root="none"
if [ "$root" = none ] && [ -n "$CI" ] && sudo -n true 2>/dev/null; then root="sudo -n"; fi
if [ "$PROGRAMS" != no ] && [ "$root" != none ] && command -v apt-get >/dev/null; then
    echo "installing for the tests, by apt-get:" $missing
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # words are meant
    if timeout 120 $root apt-get update -qq && timeout 600 $root apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
        exit 0
    fi
    echo "apt-get failed." >&2
fi
echo "NOT INSTALLED:" $missing "- the tests that need them will be skipped. Install them: apt-get install" $missing >&2
