"""The one exception that is meant for the user."""


class HeddleError(Exception):
    """A fault the user can mend: one line that names the offender and the mend.

    The command line prints it without a traceback and exits with `status`.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        """Take the line; what would break it or drive a terminal, in a name that it quotes, is escaped."""
        super().__init__(printable(message))
        self.status = status


def printable(text: str) -> str:
    """Return a text of one line, escaped where it would break that or drive a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
