"""Acting: from observations to actions, with a network that Rust runs or with any torch module.

Importing this package imports no torch.
"""

from rlz.acting.policies import Policy, make_policy, ranks
from rlz.acting.remote import RemotePolicy
from rlz.acting.rules import EpsilonGreedy, Rule, as_rule, policy_of

__all__ = ["EpsilonGreedy", "Policy", "RemotePolicy", "Rule", "as_rule", "make_policy", "policy_of", "ranks"]
