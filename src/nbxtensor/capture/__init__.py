"""Plans of this machine's devices made to run: programs, recordings, replay."""

from nbxtensor.capture.planned import load_plan, plan, save_plan
from nbxtensor.capture.program import Program, State
from nbxtensor.capture.recording import Recording

__all__ = ["Program", "Recording", "State", "load_plan", "plan", "save_plan"]
