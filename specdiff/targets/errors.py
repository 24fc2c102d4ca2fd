"""Why a target cannot be had now, though nothing is wrong with what was asked for."""


class TargetUnavailable(OSError):
    """The hub is out of reach and the model is not in this machine's cache: trying again later may help."""
