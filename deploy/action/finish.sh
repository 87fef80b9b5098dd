#!/usr/bin/env bash
# Ends the replay that replay.sh began, gives later steps their environment back, and says how it went.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
state=$RUNNER_TEMP/playhead-replay
if [ ! -e "$state/env" ]; then
    echo "playhead: no replay was begun in this job; use deploy/action before deploy/action/finish" >&2
    exit 125
fi
cat "$state/restore" >>"$GITHUB_ENV"
# Who holds the replay open reads a line; if the replay has died, nobody does, and its code is there.
[ -e "$state/code" ] || echo finish | timeout 5 tee "$state/finish" >/dev/null || true
pid=$(cat "$state/pid")
while kill -0 "$pid" 2>/dev/null && [ ! -e "$state/code" ]; do
    sleep 0.1
done
code=$(cat "$state/code" 2>/dev/null || echo 125)
cat "$state/log"
python3 "$here/summary.py" "$state/report.json" "$(cat "$state/recording")" "$code"
exit "$code"
