"""The one exception that is meant for the user."""


class HeddleError(Exception):
    """A fault the user can mend: one line that names the offender and the mend.

    The command line prints it without a traceback and exits with status 1.
    """
