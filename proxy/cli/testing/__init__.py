"""The commands that test what runs did.

canary  canary
check   check
judge   judge
regress   regress
perturb   perturb
trial_options   what the commands that run trials have in common
"""
