"""Change the embedding and LM head of a checkpoint: tie, untie, joint tie. Streaming, verified, atomic.

`tie` and `untie` do it in one call. To review the changes first, make a plan and execute it:

    plan = plan_untie(open_source("./smollm2"))
    print(*plan.changes, sep="\\n")
    outcome = execute(plan, "./smollm2-untied")
"""

from tiebeam.surgery.execute import Target, checked_target, execute
from tiebeam.surgery.extend import extend, plan_extend, plan_repair
from tiebeam.surgery.plan import Outcome, Plan, Progress
from tiebeam.surgery.source import Source, open_source
from tiebeam.surgery.tie import plan_keep, plan_tie, tie
from tiebeam.surgery.trim import plan_trim, trim
from tiebeam.surgery.untie import plan_untie, untie

__all__ = [
    "Outcome",
    "Plan",
    "Progress",
    "Source",
    "Target",
    "checked_target",
    "execute",
    "extend",
    "open_source",
    "plan_extend",
    "plan_keep",
    "plan_repair",
    "plan_tie",
    "plan_trim",
    "plan_untie",
    "tie",
    "trim",
    "untie",
]
