"""What the machine is (`detect`) and what it can do (`probe`)."""
