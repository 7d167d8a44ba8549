"""PPO whose samplers do not wait: segments of older policies, corrected by V-trace (Espeholt et al. 2018).

Everything else is PPO's. When a rollout begins, the learner's newest policy gives the values and the probabilities of
the actions that were taken; V-trace makes value targets and advantages of them, with both importance weights clipped
at 1. The clipped objective then keeps the updates near that newest policy, not near the older ones that acted. So the
first gradient of a rollout is IMPALA's, and with segments of the newest policy there is nothing to correct.

Advantages are normalised over the rollout before they are weighted. An action that the newest policy hardly takes has a
weight near 0. If the mean were subtracted behind the weight, such an action would get minus the mean for an advantage,
and its gradient, that of the logarithm of a small probability, would be among the largest of all.
"""

from __future__ import annotations

from typing import ClassVar

from rlz.algorithms.base import Segments
from rlz.algorithms.ppo import Ppo, PpoRows, PpoSettings, PpoState
from rlz.algorithms.returns import vtrace
from rlz.options import Integer, Number, changed


class AppoSettings(PpoSettings):
    """Those of PPO, with shorter rollouts that are used fewer times."""

    n_steps: Integer = changed(PpoSettings, "n_steps", 128)
    n_epochs: Integer = changed(PpoSettings, "n_epochs", 2)
    max_policy_lag: Integer | None = changed(
        PpoSettings, "max_policy_lag", None, shown="any; samplers are one rollout ahead"
    )
    gae_lambda: Number = changed(
        PpoSettings, "gae_lambda", 1.0, help="Of V-trace: 0 trusts the values, 1 the rewards of the rollout."
    )


class Appo(Ppo[AppoSettings]):
    """See the module's text."""

    Settings: ClassVar[type[AppoSettings]] = AppoSettings
    normalizes_batches = False

    def prepare(self, state: PpoState, segments: Segments, done: float) -> PpoRows:
        """Rows with V-trace's targets and advantages for the policy that the updates begin with."""
        s = segments
        policy, log_std, _ = self.net(state.net, s.obs.flatten(0, 1))
        log_prob = self.log_prob(policy, log_std, s.action.flatten(0, 1))[0].view_as(s.reward)
        value, next_value = self.values(state.net, s)
        ratio = (log_prob - s.extras["log_prob"]).exp()
        found = vtrace(
            reward=s.reward,
            value=value,
            next_value=next_value,
            ends=s.terminated | s.truncated,
            ratio=ratio,
            gamma=self.settings.gamma,
            lam=self.settings.gae_lambda,
        )
        advantage, weight = found.advantage, found.weight
        if self.settings.normalize_advantage:
            # Weighted means are those of the newest policy.
            share = weight / (weight.sum() + 1e-8)
            advantage = advantage - (share * advantage).sum()
            advantage = advantage / ((share * advantage.square()).sum().sqrt() + 1e-8)
        return self.rows(state, s, log_prob, weight * advantage, found.target, value, done)
