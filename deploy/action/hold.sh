#!/usr/bin/env bash
# Runs under `playhead replay`: writes down what differs in its environment, then waits for the last step of the job.
set -euo pipefail
state=$1

assign() {
    # The runner reads NAME<<END, lines, END; and refuses to store NODE_OPTIONS, lest a step hijacks the actions after it.
    case $1 in NODE_OPTIONS | _ | SHLVL | PWD | OLDPWD) return 0 ;; esac
    local end="PLAYHEAD_END_$RANDOM$RANDOM$RANDOM"
    printf '%s<<%s\n%s\n%s\n' "$1" "$end" "$2" "$end"
}

declare -A before=()
while IFS= read -r -d '' entry; do
    before[${entry%%=*}]=${entry#*=}
done <"$state/before"

while IFS= read -r -d '' entry; do
    name=${entry%%=*}
    [ "${before[$name]-}" = "${entry#*=}" ] && continue
    assign "$name" "${entry#*=}" >>"$state/env.part"
    assign "$name" "${before[$name]-}" >>"$state/restore"
done < <(env -0)
mv "$state/env.part" "$state/env"
echo ready >"$state/handed"
read -r _ <"$state/finish"
