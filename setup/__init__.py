"""Set-up: what a fresh Debian machine needs before Heddle runs, one stage a file.

Standard library only, because it runs before anything else is installed.
"""
