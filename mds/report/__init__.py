"""Why a run is slow: where the trainer's waits come from, and which argument mends it."""

from mds.report.account import WaitAccount
from mds.report.diagnosis import CAUSES, WaitReport, explain_waits

__all__ = ["CAUSES", "WaitAccount", "WaitReport", "explain_waits"]
