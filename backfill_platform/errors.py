"""Every error this platform raises on purpose.

    BackfillError
    ├── UsageError              wrong arguments, settings or declarations; command line exit code 2
    │   ├── HourError           not an hour, or not a half-open range of hours
    │   ├── SettingsError       a setting that is missing or makes no sense
    │   └── SpecError           a pipeline declaration that cannot work
    ├── PermanentError          trying again changes nothing: a person or a fix is needed
    │   ├── CheckFailed         a blocking check failed
    │   ├── PreconditionError   a table that cannot be repaired safely as it is
    │   ├── ChangeLimitsExceeded    the difference exceeds the change limits of the repair
    │   ├── OpenHour            live writers may still write the hour
    │   ├── InconsistentHour    net state and FINAL disagree
    │   ├── ProofFailed         fp(target) + fp(delta) != fp(desired), or the publish did not verify
    │   ├── TakenOver           another drain of the same name goes on instead
    │   └── WarehouseError      ClickHouse refused a statement
    └── TransientError          trying again may well work
        ├── WarehouseUnavailable    no connection, time-out
        ├── KafkaUnavailable    no broker answers, or it is changing its leaders
        ├── WarehouseLocked     another embedded warehouse owns the folder
        ├── LakeConflict        another writer committed to the same lake table first
        ├── HourLeased          another repair is at work on the hour
        ├── LeaseLost           this repair slept longer than its lease
        ├── ConcurrentWriter    a live writer keeps changing the hour between diff and publish
        └── ChannelUnavailable  what should carry a message to a recipient has not taken it

Each message says what happened and what to do about it.
"""


class BackfillError(Exception):
    """Base of all errors of this platform."""


class UsageError(BackfillError):
    """Wrong arguments, settings or declarations."""


class HourError(UsageError):
    """A text that is no hour, or a range that is no half-open range of hours."""


class SettingsError(UsageError):
    """A setting that is missing or makes no sense."""


class SpecError(UsageError):
    """A pipeline declaration that cannot work."""


class PermanentError(BackfillError):
    """Trying again changes nothing."""


class CheckFailed(PermanentError):
    """A blocking check failed; nothing was written for the hours it names."""


class PreconditionError(PermanentError):
    """A table that cannot be repaired safely as it is."""


class ChangeLimitsExceeded(PermanentError):
    """The difference of an hour exceeds the change limits of the repair."""


class OpenHour(PermanentError):
    """Live writers may still write the hour."""


class InconsistentHour(PermanentError):
    """Net state and FINAL disagree for an hour."""


class ProofFailed(PermanentError):
    """The fingerprints of target, delta and desired rows do not add up."""


class TakenOver(PermanentError):
    """Another drain of the same name has started, and goes on where this one ended."""


class WarehouseError(PermanentError):
    """ClickHouse refused a statement."""


class TransientError(BackfillError):
    """Trying again may well work."""


class WarehouseUnavailable(TransientError):
    """The warehouse does not answer."""


class KafkaUnavailable(TransientError):
    """No broker answers, or the cluster is changing its leaders."""


class WarehouseLocked(TransientError):
    """Another embedded warehouse process owns the data folder."""


class LakeConflict(TransientError):
    """Another writer committed to the same lake table first."""


class HourLeased(TransientError):
    """Another repair is at work on the hour."""


class LeaseLost(TransientError):
    """This repair slept longer than its lease; somebody else may be at work by now."""


class ConcurrentWriter(TransientError):
    """A live writer keeps changing an hour between the diff and the publish."""


class ChannelUnavailable(TransientError):
    """What should carry a message to a recipient has not taken it."""
