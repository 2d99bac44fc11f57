"""The one exception an operator's mistake becomes."""


class OptionError(Exception):
    """An option, or a config file, that the program cannot start with. The text is for the operator; exit code 1."""
