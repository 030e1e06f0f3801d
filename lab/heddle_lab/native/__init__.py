"""Carries out a job on this machine, as the agent does in a guest: the same steps, files and records.

`run` starts `python3 -m heddle_lab.native.agent` in namespaces of its own: mounts, processes and network end with it.
"""
