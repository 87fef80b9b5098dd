"""Check what a run did against rules that the user wrote: which tools, with which arguments, at which hosts, at what cost. Pure.

checked_run     a run as the rules see it: steps, requested tool calls and their results
spec            read the rules of a spec (TOML)
selection       select the tool calls and calls that a rule is about
conditions      compare a value with what a rule demands
rules           rules on tools, hosts, arguments, targets and budgets
content_rules   rules on answers, retrieved documents and values of other steps
check           check a run, and say what is broken
proposal        propose a spec from good runs
"""
