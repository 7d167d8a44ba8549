"""Negative control: a wrapper that reports every truncation as a termination."""

import gymnasium


class TruncationAsTermination(gymnasium.Wrapper):
    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info
