# Sourced by ./playhead and ./check: makes .venv from uv.lock, once, on a machine that has any Python 3 and nothing of ours.
# It leaves nothing outside the checkout but what an already installed uv keeps in its own places.
# shellcheck shell=sh disable=SC2154 # the sourcing script sets root

bootstrap_say() { printf 'playhead: %s\n' "$*" >&2; }

bootstrap_fail() {
    bootstrap_say "$*"
    exit 125
}

# A uv of our own, in three ways, because a fresh machine's Python may lack venv, pip or both.
bootstrap_uv() {
    if [ -n "${PLAYHEAD_UV:-}" ]; then
        echo "$PLAYHEAD_UV"
        return
    fi
    if command -v uv >/dev/null 2>&1; then
        command -v uv
        return
    fi
    own="$root/.uv/bin/uv"
    if [ ! -x "$own" ]; then
        bootstrap_say "fetching uv $uv_version (once)"
        mkdir -p "$root/.uv"
        {
            "$python3" -m venv "$root/.uv/venv" && "$root/.uv/venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" &&
                mkdir -p "$root/.uv/bin" && cp "$root/.uv/venv/bin/uv" "$own" && rm -rf "$root/.uv/venv"
        } >"$root/.uv/log" 2>&1 || {
            "$python3" -m pip install --quiet --disable-pip-version-check --target "$root/.uv/site" "uv==$uv_version" &&
                mkdir -p "$root/.uv/bin" && cp "$root/.uv/site/bin/uv" "$own" && rm -rf "$root/.uv/site"
        } >>"$root/.uv/log" 2>&1 || "$python3" "$root/deploy/fetch_uv.py" "$uv_version" "$own" >>"$root/.uv/log" 2>&1 ||
            bootstrap_fail "uv could not be fetched (see $root/.uv/log); install uv yourself and run this again"
    fi
    echo "$own"
}

# A Python that runs and is new enough. A pyenv shim is on PATH without running, so look behind it; else uv fetches one.
bootstrap_python() {
    for name in python3.13 python3.14 python3.12 python3; do
        found=$(command -v "$name" 2>/dev/null) || continue
        for candidate in "$found" "${found%/shims/*}"/versions/"${name#python}"*/bin/"$name"; do
            if [ -x "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
    echo 3.13
}

bootstrap_sync() {
    # shellcheck disable=SC2086 # the groups are words
    (cd "$root" && UV_COMPILE_BYTECODE=1 "$uv" sync --frozen --quiet --all-extras $groups) && bootstrap_compile
}

# Compiled once here, or else at every start where PYTHONDONTWRITEBYTECODE is set: two seconds each.
bootstrap_compile() {
    (cd "$root" && touch .venv/.playhead-compiling && .venv/bin/python -m compileall -q calls store replay proxy &&
        mv .venv/.playhead-compiling .venv/.playhead-compiled)
}

# Whether the checkout has changed since then, and Python itself may not keep what it compiles.
bootstrap_is_stale() {
    [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || return 1
    [ -e "$root/.venv/.playhead-compiled" ] || return 0
    newer=$(cd "$root" && find calls store replay proxy -name '*.py' -newer .venv/.playhead-compiled | head -n 1)
    [ -n "$newer" ]
}

bootstrap_why() {
    if [ -x "$UV_PYTHON" ]; then
        echo "the environment could not be made; see uv's message above"
    else
        echo "no Python 3.12 or 3.13 was found and uv could not fetch one (see above); install one, or name it with UV_PYTHON=PATH, and run this again"
    fi
}

# $1: the environment's kind, `run` or `dev`; `dev` holds all that `run` has.
bootstrap() {
    kind=$1
    # Whoever works on the checkout keeps the tools for it when `playhead` finds a new lock.
    [ -e "$root/.venv/.playhead-dev" ] && kind=dev
    stamp="$root/.venv/.playhead-$kind"
    if [ -e "$stamp" ] && [ ! "$root/uv.lock" -nt "$stamp" ] && [ ! "$root/pyproject.toml" -nt "$stamp" ]; then
        # Where the checkout cannot be written, it starts as slowly as without this.
        ! bootstrap_is_stale || bootstrap_compile 2>/dev/null || :
        return 0
    fi
    python3=$(command -v python3) || bootstrap_fail "no python3 on PATH; install any Python 3 and run this again"
    uv=$(bootstrap_uv) || exit $?
    [ "$uv" = "$root/.uv/bin/uv" ] && export UV_CACHE_DIR="$root/.uv/cache" UV_PYTHON_INSTALL_DIR="$root/.uv/python"
    groups="--no-default-groups --group demo" size=300
    [ "$kind" = dev ] && groups="--group dev" size=900
    bootstrap_say "setting up .venv from uv.lock (once; about $size MB on disk)"
    export UV_PYTHON="${UV_PYTHON:-$(bootstrap_python)}"
    bootstrap_sync >"$root/.venv.log" 2>&1 ||
        # Behind a company's proxy the roots that uv brings along do not do.
        UV_SYSTEM_CERTS=1 bootstrap_sync || bootstrap_fail "$(bootstrap_why)"
    rm -f "$root/.venv.log"
    touch "$stamp"
    [ "$kind" = dev ] && touch "$root/.venv/.playhead-run"
    return 0
}

uv_version=0.13.9
