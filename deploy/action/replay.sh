#!/usr/bin/env bash
# Answers one command, or all steps that follow, from a recording. action.yml says what the variables mean.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
state=$RUNNER_TEMP/playhead-replay
rm -rf "$state"
mkdir -p "$state"
export PLAYHEAD_DATA=$state/data

flags=(--report "$state/report.json")
[ "$PLAYHEAD_ACTION_ALLOW_UNUSED" != true ] || flags+=(--allow-unused)
[ -z "$PLAYHEAD_ACTION_CONFIG" ] || flags+=(--config "$PLAYHEAD_ACTION_CONFIG")

keys=()
for name in $PLAYHEAD_ACTION_DUMMY_KEYS; do
    [ -n "${!name:-}" ] || keys+=("$name=playhead-needs-no-key")
done

# In a network of its own nothing can leave, whatever the command does. Ubuntu 24.04 forbids that to users until it is told.
allow_namespaces() {
    if [ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ]; then
        sudo -n sysctl -q -w kernel.apparmor_restrict_unprivileged_userns=0 2>/dev/null || true
    fi
    unshare --user --map-current-user --net --mount true 2>/dev/null
}

replay() {
    "$here/../../playhead" replay "${flags[@]}" --isolation "$isolation" "$PLAYHEAD_ACTION_RECORDING" -- env "${keys[@]}" "$@"
}

if [ -n "$PLAYHEAD_ACTION_RUN" ]; then
    isolation=$PLAYHEAD_ACTION_ISOLATION
    if allow_namespaces && [ "$isolation" = auto ]; then isolation=require; fi
    code=0
    replay bash -euo pipefail -c "$PLAYHEAD_ACTION_RUN" || code=$?
    python3 "$here/summary.py" "$state/report.json" "$PLAYHEAD_ACTION_RECORDING" "$code"
    exit "$code"
fi

# Other steps are no children of ours, and cannot be in that network: they go by the variables.
isolation=off

# For the steps that follow: a command that hands its environment out and waits is what is replayed.
env -0 >"$state/before"
printf '%s\n' "$PLAYHEAD_ACTION_RECORDING" >"$state/recording"
mkfifo "$state/handed" "$state/finish"
(
    code=0
    replay "$here/hold.sh" "$state" || code=$?
    echo "$code" >"$state/code.part"
    mv "$state/code.part" "$state/code"
    # Whoever still waits for the environment learns that there is none.
    timeout 5 tee "$state/handed" </dev/null >/dev/null || true
) </dev/null >"$state/log" 2>&1 &
echo $! >"$state/pid"
read -r ready <"$state/handed" || ready=
if [ "$ready" != ready ]; then
    cat "$state/log" >&2
    exit 125
fi
cat "$state/env" >>"$GITHUB_ENV"
echo "report=$state/report.json" >>"$GITHUB_OUTPUT"
