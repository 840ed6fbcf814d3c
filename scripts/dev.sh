#!/usr/bin/env bash
# Runs a server on a scratch pool. Rebuilds and restarts it when a source file changes; Ctrl-C ends it.
# The pool is kept in .cache/dev between restarts and between runs. Arguments are passed to `forebay serve`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pool=.cache/dev/pool
server=
binary=${CARGO_TARGET_DIR:-target}/debug/forebay

# The time of the last change of a source file. Polling needs no other program.
last_change() {
    find crates Cargo.toml Cargo.lock \( -name '*.rs' -o -name 'Cargo.*' \) -printf '%T@\n' | sort -n | tail -1
}

stop() {
    if [[ -n $server ]] && kill -0 "$server" 2>/dev/null; then
        kill -TERM "$server"
        wait "$server" || true
    fi
    server=
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

mkdir -p .cache/dev
while true; do
    built=$(last_change)
    if cargo build --locked -p forebay-server; then
        stop
        "$binary" serve --data "$pool" --nbd "unix:$PWD/.cache/dev/nbd.sock" "$@" &
        server=$!
        echo "dev: the server runs as process $server on $pool" >&2
    else
        echo "dev: the build failed; the previous server keeps running" >&2
    fi
    while [[ $(last_change) == "$built" ]]; do
        sleep 1
    done
    echo "dev: a source file changed" >&2
done
