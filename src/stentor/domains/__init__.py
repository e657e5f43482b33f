"""The parts of the control plane. Inside each: api -> service -> store -> model; only api knows HTTP."""
