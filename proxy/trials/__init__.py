"""Run a command many times, each time answered from a recording, and say what came of it: `regress` and `perturb`.

trial            one trial: a process and a scratch directory of its own, and a time limit
process          the process of a trial: `python -m proxy.trials.process`
spool_follower   the exchanges that a trial leaves
outcome          same, diverged (where and how), or it cannot be told
recordings       find the recordings to replay
filled_command   a recording's name and labels in the command
regress          replay many recordings, and group what came of them
regress_report   show that
completion       complete diverged runs live, within a budget
perturb          replay one recording with variations of what the agent received
perturb_report   show that, and write what breaks as fixtures
tool_answers     the answers of tools in recordings, and their shapes
corpus           learn those shapes from all recordings
judging          judge the old and the new answers of completed runs
new_run          write what a trial did as a bundle
"""
