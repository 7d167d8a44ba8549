"""PPO whose samplers do not wait: segments of older policies, corrected by V-trace (Espeholt et al. 2018).

Everything else is PPO's. When a rollout begins, the learner's newest policy gives the values and the probabilities of
the actions that were taken; V-trace makes value targets and advantages of them, with both importance weights clipped
at 1. The clipped objective then keeps the updates near that newest policy, not near the older ones that acted. So the
first gradient of a rollout is IMPALA's, and with segments of the newest policy there is nothing to correct.
"""

from __future__ import annotations

from typing import ClassVar

from rlz.algorithms.base import Segments
from rlz.algorithms.ppo import Ppo, PpoRows, PpoSettings, PpoState
from rlz.algorithms.returns import vtrace
from rlz.options import Integer, Number, Panel, option


class AppoSettings(PpoSettings):
    """Those of PPO, with shorter rollouts that are used fewer times."""

    n_steps: Integer = option(
        128,
        panel=Panel.LEARNING,
        help="Steps of each environment in a rollout, which is what one round of learning uses.",
        metavar="STEPS",
        ge=1,
        le=2**24,
    )
    n_epochs: Integer = option(
        2, panel=Panel.LEARNING, help="How often the rows of a rollout are learned from.", metavar="INT", ge=1, le=1000
    )
    max_policy_lag: Integer | None = option(
        None,
        panel=Panel.LEARNING,
        help="Segments whose policy is older than so many versions are dropped. 0: synchronous, samplers wait for the "
        "policy that has learned from their last steps.",
        metavar="VERSIONS",
        shown="any; the queue has room for two rollouts",
        ge=0,
        le=2**31,
    )
    gae_lambda: Number = option(
        1.0, help="Of V-trace: 0 trusts the values, 1 the rewards of the rollout.", metavar="L", ge=0, le=1
    )


class Appo(Ppo[AppoSettings]):
    """See the module's text."""

    Settings: ClassVar[type[AppoSettings]] = AppoSettings

    def prepare(self, state: PpoState, segments: Segments, done: float) -> PpoRows:
        """Rows with V-trace's targets and advantages for the policy that the updates begin with."""
        s = segments
        policy, log_std, _ = self.net(state.net, s.obs.flatten(0, 1))
        log_prob = self.log_prob(policy, log_std, s.action.flatten(0, 1))[0].view_as(s.reward)
        value, next_value = self.values(state.net, s)
        ratio = (log_prob - s.extras["log_prob"]).exp()
        found = vtrace(
            *(s.reward, value, next_value, s.terminated | s.truncated, ratio),
            *(self.settings.gamma, self.settings.gae_lambda),
        )
        return self.rows(state, s, log_prob, found.advantage, found.target, value, done)
